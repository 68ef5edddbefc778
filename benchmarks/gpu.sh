#!/usr/bin/env bash
# The GPU table, on a machine with an NVIDIA GPU and onnxruntime-gpu in place of onnxruntime: fp32, fp16 and static INT8 of
# the bundle on the CUDA provider and, where its libraries are, on TensorRT; nothing silently on the CPU.
# Usage: bash benchmarks/gpu.sh BUNDLE [REPORT_FOLDER]
set -euo pipefail
bundle=${1:?usage: bash benchmarks/gpu.sh BUNDLE [REPORT_FOLDER]}
out=${2:-benchmarks/results/gpu}
subjects=$(python - "$bundle" <<'LIST'
import sys

import onnxruntime

from distilface.artifact import Bundle

backends = ["", "@tensorrt"] if "TensorrtExecutionProvider" in onnxruntime.get_available_providers() else [""]
variants = [name for name in ("fp32", "fp16", "int8-static") if name in Bundle.open(sys.argv[1]).variant_names]
print("\n".join(f"{sys.argv[1]}:{name}{backend}" for name in variants for backend in backends))
LIST
)
mapfile -t names <<<"$subjects"
python -m distilface bench "${names[@]}" --target cuda --batch-tokens 512,4096,16384 --out "$out" --overwrite
