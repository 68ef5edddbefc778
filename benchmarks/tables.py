"""Write the README's tables from the result files: ``python -m benchmarks.tables`` (``--check`` only compares)."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, read_result

README = Path(__file__).parents[1] / "README.md"
_SETS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STSBenchmark", "SICKRelatedness")
_BLOCK = re.compile(r"(<!-- table:(?P<name>\w+) -->\n).*?(<!-- /table -->)", re.DOTALL)


def minilm_sts() -> str:
    """all-MiniLM-L6-v2: size, quality and distance of every variant."""
    result = read_result("minilm_sts")
    company = any("batch_dependence" in row for row in result["rows"].values())
    columns = ["all-MiniLM-L6-v2", "size, MB", *_SETS, "avg7", "cosine to fp32, least",
               *(["alone and in company"] if company else [])]
    lines = [_row(columns), _rule(len(columns))]
    for name, row in result["rows"].items():
        size = f"{row['megabytes']:.1f}" if "megabytes" in row else "-"
        near = f"{row['minimum_cosine']:.4f}" if "minimum_cosine" in row and name != "fp32" else "-"
        beside = [f"{row['batch_dependence']:.6f}" if "batch_dependence" in row else "-"] if company else []
        lines.append(_row([name, size, *(f"{row[item]:.2f}" for item in _SETS), f"{row['avg7']:.2f}", near, *beside]))
    return _with_command(lines, result)


def training() -> str:
    """The masked language model before and after each training run."""
    lines = [_row(["run", "steps", "minutes", "avg7", "recall@1", "recall@10", "made by"]), _rule(7)]
    for run in ("unsup", "words", "sup"):
        if not (RESULTS / f"train_{run}.json").is_file():
            continue
        result = read_result(f"train_{run}")
        lines.append(_row([run, str(result["steps"]), f"{result['minutes']:.0f}",
                           *(_lifted(result, name) for name in ("avg7", "recall@1", "recall@10")),
                           f"`{result['command']}`"]))
    return "\n".join(lines)


def _lifted(result: dict[str, Any], name: str) -> str:
    before, after = result["before_untrained_mean_last"], result["after"]
    return f"{before[name]:.2f} -> **{after[name]:.2f}**" if name in after else "-"


def distillation() -> str:
    """What distillation reaches: start, student and teacher of every run that was made."""
    lines = [_row(["run", "layers", "parameters", "avg7", "recall@1", "recall@10", "static INT8: avg7",
                   "MB", "as fast as the whole", "steps", "minutes"]), _rule(11)]
    commands = []
    for run in ("layers3", "layers2", "layers1", "mlm", "mpnet"):
        if not (RESULTS / f"distill_{run}.json").is_file():
            continue
        result = read_result(f"distill_{run}")
        commands.append(f"`{result['command']}`")
        lines.append(_row([
            run, str(result["layers"]), f"{result['parameters'] / 1e6:.1f} M",
            *(_reached(result["scores"], name) for name in ("avg7", "recall@1", "recall@10")), *_as_int8(result),
            str(result["steps"]),
            f"{result['minutes']:.0f}"]))
    if not commands:
        return "\n".join(lines)
    return "\n".join(lines) + "\n\nEach cell: start -> **student** (teacher). Made by " + ", ".join(commands) + "."


def budgets() -> str:
    """What `compress` finds within each budget that was searched."""
    found = [read_result(f"budget_{run}") for run in ("12MB", "10MB", "6MB", "4MB")
             if (RESULTS / f"budget_{run}.json").is_file()]
    if not found:
        return ""
    lines = [_row(["budget", "best graph", "MB", "layers", "words", "avg7", "recall@1", "recall@10", "minutes"]),
             _rule(9), _row(["-", "fp32", "-", "6", "30,522", *(f"{found[0]['fp32'][name]:.2f}" for name in (
                 "avg7", "recall@1", "recall@10")), "-"])]
    for result in found:
        best, scores = result["best"], result["scores"]
        lines.append(_row([result["run"], best["words"], f"{best['size'] / 1e6:.1f}", str(best["layers"]),
                           f"{best['rows']:,}", f"**{scores['avg7']:.2f}**", f"{scores['recall@1']:.2f}",
                           f"{scores['recall@10']:.2f}", f"{result['minutes']:.0f}"]))
    return "\n".join(lines) + "\n\nMade by " + ", ".join(f"`{result['command']}`" for result in found) + "."


def _reached(scores: dict[str, Any], name: str) -> str:
    teacher = f" ({scores['teacher'][name]:.2f})" if "teacher" in scores else ""
    return f"{scores['start'][name]:.2f} -> **{scores['student'][name]:.2f}**{teacher}"


def _as_int8(result: dict[str, Any]) -> list[str]:
    facts = result.get("int8-static")
    if facts is None:
        return ["-", "-", "-"]
    faster = f"{facts['times_as_fast']:.2f}x" if "times_as_fast" in facts else "-"
    return [f"{result['scores']['int8-static']['avg7']:.2f}", f"{facts['size'] / 1e6:.1f}", faster]


def training_speed() -> str:
    """Sentences a second and quality of both trainers after equal steps."""
    result = read_result("training_speed")
    lines = [_row(["trainer", "precision", "sentences/s", "to the peer", "to its fp32", "STS-B dev after equal steps"]),
             _rule(6)]
    lines += [_row([row["side"], row["precision"], f"{row['sentences_per_second']:.1f}", f"**{row['to_peer']:.2f}x**",
                    f"{row['to_peer_fp32']:.2f}x", f"{row['dev_before']:.2f} -> {row['dev_after']:.2f}"])
              for row in result["rows"]]
    machine = result["machine"]
    return _with_command(lines, result) + (
        f"\n\n{machine['cpu']}, {machine['cores_usable']} cores, {', '.join(machine['instruction_sets'])}; torch "
        f"{machine['libraries']['torch']}, sentence-transformers {machine['libraries']['sentence-transformers']}; "
        f"{result['steps']} steps, medians of {result['rounds']}.")


def speed() -> str:
    """Gains of the INT8 variants over fp32 in one interleaved run."""
    result = read_result("minilm_bench")
    lines = [_row(["variant", "size", "batch-1 p50, short text", "batch-1 p50, 128 tokens", "sentences/s"]), _rule(5)]
    for subject in result["report"]["subjects"]:
        at = {row["tokens"]: row for row in subject["latency"]}
        short, long = at[result["report"]["short_tokens"]], at[result["report"]["long_tokens"]]
        throughput = max(subject["throughput"], key=lambda row: float(row["sentences_per_second"]["median"]))
        lines.append(_row([
            subject["variant"], _gain(subject["size_gain"], f"{subject['size_bytes'] / 1e6:.1f} MB"),
            _gain(_median(short), f"{short['p50']:.2f} ms"), _gain(_median(long), f"{long['p50']:.2f} ms"),
            _gain(_median(throughput), f"{throughput['sentences_per_second']['median']:,.0f}/s")]))
    machine = result["report"]["machine"]
    facts = (f"{machine['cpu']}, {machine['cores_usable']} cores, "
             f"{', '.join(machine['instruction_sets'])}; onnxruntime "
             f"{machine['libraries']['onnxruntime']}.")
    return _with_command(lines, result) + f"\n\n{facts}"


_AXES = {"length": "tokens of a text", "batch": "padded tokens in a batch", "threads": "threads", "layers": "layers",
         "vocabulary": "words", "texts": "texts, streamed"}
_COSTS = {"p50_ms": ("p50 at batch 1, ms", 2), "sentences_per_second": ("sentences/s", 0),
          "megabytes": ("size, MB", 1), "peak_megabytes": ("peak memory, MB", 0)}


def scaling() -> str:
    """What grows, and how cost grows with it; nothing before it was measured."""
    if not (RESULTS / "scaling.json").is_file():
        return ""
    result = read_result("scaling")
    lines = [_row(["what grows", "model", "cost", "value: cost"]), _rule(4)]
    for axis, label in _AXES.items():
        for model in dict.fromkeys(row["model"] for row in result["rows"] if row["axis"] == axis):
            rows = [row for row in result["rows"] if (row["axis"], row["model"]) == (axis, model)]
            lines += [_row([label, model, cost, ", ".join(f"{row['value']:,}: {row[key]:,.{digits}f}" for row in rows)])
                      for key, (cost, digits) in _COSTS.items() if key in rows[0]]
    return _with_command(lines, result)


def peers() -> str:
    """Every way to run the same weights, in one run; nothing before it was measured."""
    if not (RESULTS / "peers.json").is_file():
        return ""
    result = read_result("peers")
    report = result["report"]
    columns = ["", "size, MB", "avg7", "cosine to fp32, least", "alone and in company", "integer products",
               f"p50 at {report['short_tokens']} tokens, ms", "sentences/s"]
    lines = ["The same weights, texts and threads in other libraries, interleaved in one run. Integer products: those "
             "that the runtime computes on integers, read from what it made of the file.", "",
             _row(columns), _rule(len(columns))]
    for subject in report["subjects"]:
        facts = result["subjects"][subject["name"]]
        versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items() if version)
        short = next(row for row in subject["latency"] if row["tokens"] == report["short_tokens"])
        fastest = max(float(row["sentences_per_second"]["median"]) for row in subject["throughput"])
        matmuls = facts["matmuls"]
        lines.append(_row([
            f"{subject['name']} ({versions})", f"{subject['size_bytes'] / 1e6:.1f}",
            f"{subject['sts']['average']:.2f}" if subject["sts"] else "-",
            f"{subject['cosine']['minimum']:.4f}" if subject["cosine"] else "-",
            f"{subject['batch_dependence']:.6f}",
            f"{matmuls['integer']} of {matmuls['integer'] + matmuls['other']}" if matmuls else "-",
            f"{short['p50']:.2f}", f"{fastest:,.0f}"]))
    machine = report["machine"]
    text = _with_command(lines, result) + (
        f"\n\n{machine['cpu']}, {report['threads']} threads, {', '.join(machine['instruction_sets'])}; "
        f"{report['text_count']:,} sentences of {report['mean_tokens']:.1f} tokens on average, medians of "
        f"{report['rounds']} rounds.")
    missing = "; ".join(f"{name} ({reason})" for name, reason in result["left_out"].items())
    return text + (f" Left out: {missing}." if missing else "")


def probes() -> str:
    """Whether the layers that a probe ranks first are those to keep; nothing before it was measured."""
    if not (RESULTS / "probe_ranking.json").is_file():
        return ""
    result = read_result("probe_ranking")
    found = {(row["ranking"], row["layers"]): row for row in result["rows"]}
    even = found[None, "evenly spaced"]
    kept = result["kept"]
    lines = [f"Which {kept} layers of the same model to keep: STS-B dev after fine-tuning them alike "
             f"({result['recipe']['train']['max_steps']} steps, {len(even['scores'])} seeds, mean and 95 % interval); "
             f"evenly spaced, {_layers(even)}, reach {_spread(even)}.", "",
             _row(["ranked by", f"best {kept}", f"worst {kept}", "best - evenly spaced", "best - worst"]), _rule(5)]
    for answer in result["answers"]:
        name = answer["ranking"]
        best, worst = found[name, "best"], found[name, "worst"]
        lines.append(_row([name, f"{_layers(best)}: {_spread(best)}", f"{_layers(worst)}: {_spread(worst)}",
                           _spread(answer["best_minus_even"], "+"), _spread(answer["best_minus_worst"], "+")]))
    return _with_command(lines, result)


def _layers(row: dict[str, Any]) -> str:
    return ", ".join(map(str, row["kept_layers"]))


def _spread(row: dict[str, Any], sign: str = "") -> str:
    span = "" if row["low"] is None else f" ({row['low']:{sign}.2f} to {row['high']:{sign}.2f})"
    return f"{row['mean']:{sign}.2f}{span}"


def consumers() -> str:
    """Every consumer and variant: worst cosine to the golden vectors."""
    if not (RESULTS / "consumers.json").is_file():
        return ""
    result = read_result("consumers")
    variants = list(result["floors"])
    lines = [_row(["consumer", "version", *variants]), _rule(2 + len(variants))]
    found: dict[tuple[str, str], dict[str, str]] = {}
    for row in result["rows"]:
        cell = f"{row['cosine']:.7f}"[:9] if row["status"] == "ok" else row["status"]
        variant = "fp32" if row.get("variant") == "checkpoint" else row.get("variant", "fp32")
        found.setdefault((row["consumer"], row.get("version", "")), {})[variant] = cell
    lines += [_row([consumer, version, *(cells.get(variant, "-") for variant in variants)])
              for (consumer, version), cells in found.items()]
    lines.append(_row(["floor", "", *(f"{result['floors'][variant]}" for variant in variants)]))
    return _with_command(lines, result)


def browser_app() -> str:
    """The page of export/web on a real model: times, memory, and whether it finds what `Encoder` finds."""
    if not (RESULTS / "browser_app.json").is_file():
        return ""
    result = read_result("browser_app")
    columns = [f"{result['lines']:,} lines", "loads, CPU s", "embeds the lines, CPU s", "lines a CPU second",
               "a query, CPU ms", "page's process, MB at most", "own line first", "nearest as `Encoder`'s"]
    lines = [_row(columns), _rule(len(columns))]
    for name, row in result["rows"].items():
        query = f"{row['query_cpu_milliseconds']:.0f}" if "query_cpu_milliseconds" in row else "-"
        lines.append(_row([
            name, f"{row['load_cpu_seconds']:.1f}", f"{row['index_cpu_seconds']:.0f}",
            f"{result['lines'] / row['index_cpu_seconds']:.0f}", query, f"{row['process_megabytes']:.0f}",
            f"{row['own_lines_first']} of {row['own_lines_asked']}",
            f"{100 * row['same_nearest']:.0f} % of {row['nearest']}"]))
    return _with_command(lines, result)


TABLES: dict[str, Callable[[], str]] = {"consumers": consumers, "minilm_sts": minilm_sts, "training": training,
                                        "distillation": distillation, "probes": probes, "budgets": budgets,
                                        "speed": speed, "scaling": scaling, "peers": peers,
                                        "training_speed": training_speed, "browser_app": browser_app}


def filled(text: str) -> str:
    """``text`` with every table block written anew."""
    return _BLOCK.sub(lambda match: f"{match[1]}{TABLES[match['name']]()}\n{match[3]}", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit with 1 when the README is not up to date")
    current = README.read_text(encoding="utf-8")
    wanted = filled(current)
    if parser.parse_args().check:
        sys.exit(0 if current == wanted else f"{README.name} is older than {RESULTS}: run python -m benchmarks.tables")
    README.write_text(wanted, encoding="utf-8", newline="\n")


def _median(row: dict[str, Any]) -> float | None:
    return float(row["gain"]["median"]) if row["gain"] else None


def _gain(gain: float | None, absolute: str) -> str:
    return f"{absolute}" if gain is None else f"**{gain:.2f}x** ({absolute})"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _rule(columns: int) -> str:
    return "|" + "---|" * columns


def _with_command(lines: list[str], result: dict[str, Any]) -> str:
    return "\n".join(lines) + f"\n\nMade by `{result['command']}`."


if __name__ == "__main__":
    main()
