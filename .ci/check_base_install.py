"""Fail unless the base install runs without torch and names the extra that a verb lacks."""

import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.pop(0)
command = Path(sys.executable).parent / "distilface"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as work:
        return subprocess.run([str(command), *arguments], cwd=work, capture_output=True, text=True, check=False)


for module in ("torch", "transformers", "scipy", "onnx"):
    if subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True, check=False).returncode == 0:
        sys.exit(f"base install: {module} is installed; this environment proves nothing")
if run("--help").returncode != 0 or "encode" not in run("--help").stdout:
    sys.exit("base install: --help fails")
imported = subprocess.run([sys.executable, "-c", "from distilface import Encoder; print(Encoder.__name__)"],
                          capture_output=True, text=True, check=False)
if imported.stdout != "Encoder\n":
    sys.exit(f"base install: the runtime does not import: {imported.stderr}")
cases = ((("train", "--model", "m", "--data", "d.txt"), "train"), (("export", "m", "--out", "o"), "export"),
         (("demo",), "demo"))
for arguments, extra in cases:
    result = run(*arguments)
    lines = result.stderr.strip().splitlines()
    if result.returncode != 2 or f"pip install 'distilface[{extra}]'" not in lines[-1]:
        sys.exit(f"base install: {arguments[0]} answers {result.returncode}: {result.stderr}")
print("base install: runtime, help and missing extras as they should be")
