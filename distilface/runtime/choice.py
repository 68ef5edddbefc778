"""Which engine `backend="auto"` takes, and why: a rule, so that the same machine always answers the same."""

from __future__ import annotations

import importlib.util
import platform
from typing import Literal, get_args

from distilface.artifact import Variant
from distilface.errors import UserError
from distilface.runtime.engines import Backend

Choice = Literal["onnxruntime", "openvino", "auto"]


def check_version(name: str, variant: Variant) -> None:
    """Refuse a variant whose operators this ONNX Runtime is too old for, with the version that has them."""
    import onnxruntime

    def parts(version: str) -> tuple[int, ...]:
        return tuple(int(part) for part in version.split(".")[:2])

    if variant.needs_onnxruntime and parts(onnxruntime.__version__) < parts(variant.needs_onnxruntime):
        raise UserError(f"variant {name!r} needs onnxruntime {variant.needs_onnxruntime} or newer, and this is "
                        f"{onnxruntime.__version__}; pip install --upgrade onnxruntime, or use another variant")


def choose_backend(asked: Choice, name: str, variant: Variant, provider: str) -> tuple[Backend, str]:
    """The backend and the reason.

    ``auto`` takes OpenVINO for static INT8 on an x86-64 processor, where it embeds many texts faster (it loads slower;
    ``distilface bench BUNDLE BUNDLE@openvino`` measures both), and ONNX Runtime for all else: float32, in which the two
    are alike, other kinds, which OpenVINO computes in float, other processors, and GPUs.
    """
    if asked == "auto":
        if provider != "cpu":
            return "onnxruntime", f"OpenVINO runs here on the CPU only, and {provider} was asked for"
        if variant.kind != "int8-static":
            return "onnxruntime", f"OpenVINO is faster for int8-static alone, and {name} is {variant.kind}"
        if platform.machine().lower() not in ("x86_64", "amd64"):
            return "onnxruntime", f"the rule knows OpenVINO as faster on x86-64 only, and this is {platform.machine()}"
        if importlib.util.find_spec("openvino") is None:
            return "onnxruntime", "OpenVINO is not installed (pip install 'distilface[openvino]')"
        return "openvino", "OpenVINO is the faster one for int8-static on x86-64"
    if asked not in get_args(Choice):
        raise UserError(f"unknown backend {asked!r}; allowed: {', '.join(get_args(Choice))}")
    return asked, "asked for"
