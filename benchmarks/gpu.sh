#!/usr/bin/env bash
# The GPU table, on a machine with an NVIDIA GPU and onnxruntime-gpu in place of onnxruntime: fp32 on CUDA, side by side
# with nothing silently on the CPU. Usage: bash benchmarks/gpu.sh BUNDLE [REPORT_FOLDER]
set -euo pipefail
bundle=${1:?usage: bash benchmarks/gpu.sh BUNDLE [REPORT_FOLDER]}
out=${2:-benchmarks/results/gpu}
python -m distilface bench "$bundle:fp32" --target cuda --out "$out" --overwrite
