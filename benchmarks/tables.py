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
    lines = [_row(["all-MiniLM-L6-v2", "size, MB", *_SETS, "avg7", "cosine to fp32, least"]), _rule(11)]
    for name, row in result["rows"].items():
        size = f"{row['megabytes']:.1f}" if "megabytes" in row else "-"
        near = f"{row['minimum_cosine']:.4f}" if "minimum_cosine" in row and name != "fp32" else "-"
        lines.append(_row([name, size, *(f"{row[item]:.2f}" for item in _SETS), f"{row['avg7']:.2f}", near]))
    return _with_command(lines, result)


def training() -> str:
    """The masked language model before and after each training run."""
    lines = [_row(["run", "steps", "minutes", "avg7 before", "avg7 after", "made by"]), _rule(6)]
    for run in ("unsup", "sup"):
        result = read_result(f"train_{run}")
        lines.append(_row([run, str(result["steps"]), f"{result['minutes']:.0f}",
                           f"{result['before_untrained_mean_last']['avg7']:.2f}", f"{result['after']['avg7']:.2f}",
                           f"`{result['command']}`"]))
    return "\n".join(lines)


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


TABLES: dict[str, Callable[[], str]] = {"minilm_sts": minilm_sts, "training": training, "speed": speed}


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
