"""Speed of the INT8 variants of all-MiniLM-L6-v2 against fp32, interleaved, each in its own process.

    python -m benchmarks.minilm_bench --data ../shared/data
"""

from __future__ import annotations

import argparse
import json
import tempfile
from itertools import islice
from pathlib import Path

from benchmarks.common import folder, sample_sentences, write_result
from distilface.benchmarking import BenchConfig, bench, find_subjects
from distilface.data import iter_texts
from distilface.exporter import export
from distilface.loading import MINILM
from distilface.quantization import quantize
from distilface.report import write_report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with sentences.txt.gz and senteval/")
    parser.add_argument("--report", help="also write the HTML report there")
    arguments = parser.parse_args()
    data = folder(arguments.data, "data folder")
    with tempfile.TemporaryDirectory() as work:
        bundle = Path(work) / "minilm"
        export(MINILM, bundle)
        texts = list(islice(iter_texts(data / "sentences.txt.gz"), 1000))
        quantize(bundle, "dynamic", texts)
        quantize(bundle, "static", texts)
        sample = Path(work) / "sts_sentences.txt"
        sample.write_text("\n".join(sample_sentences(data / "senteval", 1000)), encoding="utf-8")
        report = bench(find_subjects(bundle), BenchConfig(texts=sample, text_count=1000), command="minilm_bench")
        if arguments.report:
            write_report(report, arguments.report)
    values = json.loads(report.to_json())
    for subject in values["subjects"]:
        subject["model"] = "minilm"  # the bundle lay in a temporary folder
    values["text_source"] = "1,000 distinct sentences of the STS sets"
    print(write_result("minilm_bench", {"report": values}))


if __name__ == "__main__":
    main()
