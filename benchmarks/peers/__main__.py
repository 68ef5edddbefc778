"""The same weights, texts and threads in every way there is to run them on a CPU, side by side in one bench run.

    python -m benchmarks.peers --data ../shared/data --environments runs/environments

Measured are the variants of a bundle of all-MiniLM-L6-v2 in ONNX Runtime and in OpenVINO, and the peers that
`benchmarks.peers.registry` lists, each in an environment of its own. Environments that are missing are made with pip;
what peers make of the weights stays in --out for the next run. A peer that can't be had or does not work is left out,
and the result says so. It needs a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, command_line, folder, sample_sentences, write_result
from benchmarks.environments import ROOT
from benchmarks.peers.making import Maker, Tried, peers_named, versions_and_kernels
from distilface.artifact import Bundle
from distilface.benchmarking import BenchConfig, bench
from distilface.benchmarking.kept import forget
from distilface.data import iter_texts
from distilface.errors import UserError
from distilface.exporter import export
from distilface.loading import MINILM, resolve_model
from distilface.machine import machine_facts
from distilface.quantization import quantize
from distilface.quantization.recipe import Mode
from distilface.report import write_report

VARIANTS: dict[str, Mode] = {"int8-static": "static", "int8-dynamic": "dynamic", "int8-token": "token", "w8": "w8",
                             "w4": "w4"}
CALIBRATION = 1000


def main() -> None:
    arguments = parser().parse_args()
    data = folder(arguments.data, "data folder")
    peers = peers_named(arguments.only)
    # Workers in other environments find the source of this project there, and nobody asks a hub for anything.
    os.environ |= {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    texts = list(islice((text for text in iter_texts(data / "sentences.txt.gz") if text.strip()), CALIBRATION))
    bundle = bundled(arguments.out / "bundle", texts)
    threads = arguments.threads or machine_facts().cores_usable
    maker = Maker(bundle, resolve_model(MINILM), texts, arguments.environments, arguments.out, threads)
    tried = maker.ours(["fp32", *VARIANTS])
    for peer in peers:
        found = maker.peer(peer)
        print(f"{peer.name}: {'ready' if found else maker.left_out[peer.name]}", flush=True)
        tried += [] if found is None else [found]
    report = measured(arguments, tried, data, threads)
    found_of = versions_and_kernels(tried)
    for subject in report["subjects"]:
        subject["model"] = MINILM
    print(write_result("peers", {"left_out": maker.left_out, "subjects": found_of, "report": report},
                       arguments.results))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--data", required=True, help="folder with sentences.txt.gz and senteval/")
    found.add_argument("--environments", type=Path, default=Path("runs/environments"))
    found.add_argument("--out", type=Path, default=Path("runs/peers"), help="the bundle and what peers make")
    found.add_argument("--only", nargs="+", metavar="NAME", help="only peers whose names contain one of these")
    found.add_argument("--threads", type=int, help="default: the processors this process may use")
    found.add_argument("--rounds", type=int, default=5)
    found.add_argument("--text-count", type=int, default=1000, help="sentences of each throughput pass")
    found.add_argument("--sts", type=Path, help="other judged pairs, for a quick try: smarthome or a file")
    found.add_argument("--results", type=Path, default=RESULTS, help="folder of peers.json")
    return found


def bundled(folder: Path, texts: list[str]) -> Path:
    """The bundle with every variant, those that are missing made now."""
    if not folder.is_dir():
        export(MINILM, folder)
    for name, mode in VARIANTS.items():
        if name not in Bundle.open(folder).variant_names:
            print(f"{name}: quantizing", flush=True)
            quantize(folder, mode, texts)
    return folder


def measured(arguments: argparse.Namespace, tried: list[Tried], data: Path, threads: int) -> dict[str, Any]:
    """The report of one run of all subjects, which lies as a page in ``--out``, too."""
    sample = arguments.out / "texts.txt"
    sample.write_text("\n".join(sample_sentences(data / "senteval", arguments.text_count)), encoding="utf-8")
    config = BenchConfig(texts=sample, text_count=arguments.text_count, threads=threads, rounds=arguments.rounds,
                         sts=arguments.sts or data / "senteval", lengths=(16, 64, 128),
                         load_repeats=min(3, arguments.rounds))
    kept = arguments.out / "measured"
    report = bench([item.subject for item in tried], config, said, command_line(), keep=kept, anew=True)
    write_report(report, arguments.out / "report", overwrite=True)
    forget(kept)
    values: dict[str, Any] = json.loads(report.to_json())
    values["text_source"] = f"{arguments.text_count:,} distinct sentences of the STS sets"
    return values


def said(stage: str, done: int, total: int) -> None:
    """Progress, one line a step."""
    print(f"{stage} {done}/{total}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
