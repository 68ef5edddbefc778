"""What every recipe needs: where the measuring data lies, and how a model is scored and a result written."""

from __future__ import annotations

import json
import shlex
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from distilface.artifact import atomic_file
from distilface.errors import UserError
from distilface.evaluation import STS_SETS, evaluate_sts, load_sts
from distilface.machine import machine_facts
from distilface.protocol import SentenceVectors
from distilface.tokenizer import write_json

RESULTS = Path(__file__).parent / "results"


def folder(path: str, what: str) -> Path:
    """An existing folder, or one line that says which is missing."""
    found = Path(path)
    if not found.is_dir():
        raise UserError(f"{what} {path!r} does not exist; see benchmarks/README.md for what it must hold")
    return found


def distinct_sentences(senteval: Path) -> list[str]:
    """The sentences of the seven sets, each once."""
    pairs = [subset for item in load_sts(senteval, STS_SETS) for subset in item.subsets]
    return list(dict.fromkeys(text for subset in pairs for text in (*subset.sentences1, *subset.sentences2)))


def sample_sentences(senteval: Path, count: int) -> list[str]:
    """``count`` of the seven sets' distinct sentences, evenly spread over them."""
    sentences = [text for text in distinct_sentences(senteval) if text.strip()]
    return sentences[:: max(1, len(sentences) // count)][:count]


def scores(encoder: SentenceVectors, data: Path) -> dict[str, Any]:
    """Spearman in points of each set, and the averages."""
    found = evaluate_sts(encoder, data / "senteval")
    return {**{item.name: round(item.spearman, 3) for item in found.sets}, "avg7": found.avg7, "avg5": found.avg5}


def write_result(name: str, values: dict[str, Any], where: Path = RESULTS) -> Path:
    """Write ``benchmarks/results/NAME.json`` with the command, the date and the machine that made it."""
    file = where / f"{name}.json"
    facts = machine_facts().model_dump(mode="json")
    made = {"command": command_line(), "date": datetime.now(timezone.utc).date().isoformat(), "machine": facts}
    with atomic_file(file) as temporary:
        write_json(temporary, made | values)
    return file


def command_line() -> str:
    """How this process was started, as a user types it; where a copy was kept (``--keep``) has no part in it."""
    script = Path(sys.argv[0])
    name = script.parent.name if script.stem == "__main__" else script.stem
    arguments = list(sys.argv[1:])
    if "--keep" in arguments:
        del arguments[arguments.index("--keep") : arguments.index("--keep") + 2]
    return shlex.join(["python", "-m", f"benchmarks.{name}", *arguments])


def read_result(name: str) -> dict[str, Any]:
    """A result by its name."""
    values: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return values
