"""Build the all-MiniLM-L6-v2 bundle that edge apps load: fp32 and both INT8 graphs, verified.

    python -m export.minilm --calibration sentences.txt --out runs/minilm

Static INT8 is calibrated on sentences of the kind the app will see; without a file,
on the built-in smart-home commands.
"""

from __future__ import annotations

import argparse
from itertools import islice
from pathlib import Path

from distilface import smarthome
from distilface.data import iter_texts
from distilface.exporter import export
from distilface.loading import MINILM
from distilface.quantization import quantize
from distilface.verification import require_passed, verify


def build(out: Path, calibration: str | None, overwrite: bool) -> Path:
    """Export, quantize both ways, verify; returns the bundle's folder."""
    if calibration is None:
        texts = [item.text for item in smarthome.utterances()]
    else:
        texts = list(islice(iter_texts(calibration), 5000))
    bundle = export(MINILM, out, overwrite=overwrite)
    quantize(bundle.folder, "dynamic", texts)
    quantize(bundle.folder, "static", texts)
    require_passed(bundle.folder, verify(bundle.folder))
    return bundle.folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/minilm"))
    parser.add_argument("--calibration", help="text file, one sentence a line")
    parser.add_argument("--overwrite", action="store_true")
    arguments = parser.parse_args()
    print(build(arguments.out, arguments.calibration, arguments.overwrite))


if __name__ == "__main__":
    main()
