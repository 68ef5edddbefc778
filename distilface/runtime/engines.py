"""What runs a graph: ONNX Runtime, or OpenVINO reading the same ONNX file."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from distilface.errors import UserError, require
from distilface.protocol import Vectors

OUTPUT = "sentence_embedding"
Backend = Literal["onnxruntime", "openvino"]
BACKENDS = ("onnxruntime", "openvino")
Feed = dict[str, NDArray[np.int64]]

_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider", "tensorrt": "TensorrtExecutionProvider"}
# What a provider lacks goes to the next: shape arithmetic has no GPU kernels. `placement` says what went where.
_CHAINS = {"cpu": ("cpu",), "cuda": ("cuda", "cpu"), "tensorrt": ("tensorrt", "cuda", "cpu")}
LARGEST_BATCH = 512
"""Rows that TensorRT plans for, and so never gets more of."""


class Engine(Protocol):
    """A loaded graph. ``run`` may be called from many threads at once.

    Attributes:
        inputs: the names it asks for.
        outputs: the names the file offers.
        dim: width of ``sentence_embedding``.
    """

    inputs: list[str]
    outputs: list[str]
    dim: int

    def run(self, feed: Feed) -> Vectors:
        """The pooled vectors ``[batch, dim]`` of one padded batch."""


def open_engine(backend: Backend, graph: Path, threads: int, streams: int, provider: str, kind: str = "",
                longest: int = 512) -> Engine:
    """Load ``graph``.

    Args:
        kind: of the variant, and ``longest`` text in tokens: what TensorRT plans its engine for.
        threads: of all runs together.
        streams: how many runs go side by side; each has ``threads / streams`` of the threads.

    Raises:
        UserError: the file can't be loaded, lacks the pooled output, or the provider isn't there.
    """
    if backend == "openvino":
        return OpenVinoEngine(graph, threads, streams, provider)
    # Callers bring a thread each, so one session with fewer threads of its own serves all streams.
    return OnnxRuntimeEngine(graph, threads // streams, provider, kind=kind, longest=longest)


class OnnxRuntimeEngine:
    """A session of ONNX Runtime.

    Args:
        bound: inputs are put on the device and the pooled output is made there (IO binding), so that a run copies
            nothing but ids and vectors; default, on a GPU.
    """

    def __init__(self, graph: Path, threads: int, provider: str, bound: bool | None = None, kind: str = "",
                 longest: int = 512) -> None:
        self._device = "cpu" if provider == "cpu" else "cuda"
        self._bound = self._device != "cpu" if bound is None else bound
        self._session = open_session(graph, session_options(threads), provider, kind, longest)
        self.inputs = [item.name for item in self._session.get_inputs()]
        shapes = {item.name: item.shape for item in self._session.get_outputs()}
        self.outputs = list(shapes)
        _check_output(graph, self.outputs)
        self.dim = int(shapes[OUTPUT][-1])

    def run(self, feed: Feed) -> Vectors:
        """See `Engine`."""
        if not self._bound:
            return self._session.run([OUTPUT], feed)[0]  # type: ignore[no-any-return]
        binding = self._session.io_binding()
        for name, values in feed.items():
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(values, self._device, 0))
        binding.bind_output(OUTPUT, self._device, 0)
        self._session.run_with_iobinding(binding)
        return np.array(binding.get_outputs()[0].numpy())


class OpenVinoEngine:
    """A model compiled by OpenVINO for the CPU, in float32 where the graph is in float32.

    Left alone, OpenVINO computes in bfloat16 on processors that have it; vectors would then differ by machine.
    """

    def __init__(self, graph: Path, threads: int, streams: int, provider: str) -> None:
        if provider != "cpu":
            raise UserError(f"backend 'openvino' on provider {provider!r}: only cpu; use backend='onnxruntime' there")
        openvino: Any = require("openvino", "openvino", "backend 'openvino'")
        settings = openvino_settings(threads, streams)
        core = openvino.Core()
        try:
            model = core.read_model(str(graph))
            self.outputs = [item.any_name for item in model.outputs]
            _check_output(graph, self.outputs)
            output = model.output(OUTPUT)
            # Without the other output nothing is spent on copying the token states out.
            pooled = openvino.Model([output], model.get_parameters(), graph.stem)
            self._compiled = core.compile_model(pooled, "CPU", settings)
        except UserError:
            raise
        except Exception as error:  # the binding raises bare RuntimeErrors
            raise _unloadable(f"OpenVINO {openvino.__version__}", graph, error) from None
        self.inputs = [item.any_name for item in self._compiled.inputs]
        self.dim = output.partial_shape[-1].get_length()
        # A request holds one run's buffers, and a run its request; as many are made as run at once.
        self._requests: queue.LifoQueue[Any] = queue.LifoQueue()

    def run(self, feed: Feed) -> Vectors:
        """See `Engine`."""
        try:
            request = self._requests.get_nowait()
        except queue.Empty:
            request = self._compiled.create_infer_request()
        try:
            return np.array(request.infer(feed, share_inputs=True, share_outputs=True)[0])
        finally:
            self._requests.put(request)


def open_session(graph: Path, options: Any, provider: str, kind: str, longest: int) -> Any:
    """A session on ``provider``, never on another in its place.

    Raises:
        UserError: the provider isn't there or did not start, or the file can't be loaded.
    """
    names = [_provider(name) for name in _CHAINS.get(provider, (provider,))]
    try:
        settings: list[dict[str, str]] = [{} for _ in names]
        if provider == "tensorrt":
            plain = ort.SessionOptions()
            plain.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
            known = ort.InferenceSession(str(graph), plain, providers=["CPUExecutionProvider"])
            settings[0] = tensorrt_settings(kind, [item.name for item in known.get_inputs()], longest)
        session = ort.InferenceSession(str(graph), options, providers=names, provider_options=settings)
    except Exception as error:  # the binding's own classes derive from Exception
        raise _unloadable(f"ONNX Runtime {ort.__version__}", graph, error) from None
    started = session.get_providers()
    missing = next((name for name in names if name not in started), None)
    if missing is not None or started[0] != names[0]:
        raise UserError(f"provider {provider!r} could not be started (ONNX Runtime has {', '.join(started)} instead of "
                        f"{', '.join(names)}); check the driver and the CUDA, cuDNN and TensorRT libraries, or use "
                        "provider='cpu'")
    return session


def tensorrt_settings(kind: str, inputs: list[str], longest: int) -> dict[str, str]:
    """One engine for every shape up to the largest batch; 16-bit and integer kernels only where the graph asks for
    them, so that float32 stays float32."""
    def shapes(rows: int, tokens: int) -> str:
        return ",".join(f"{name}:{rows}x{tokens}" for name in inputs)

    settings = {"trt_profile_min_shapes": shapes(1, 1), "trt_profile_opt_shapes": shapes(16, min(32, longest)),
                "trt_profile_max_shapes": shapes(LARGEST_BATCH, longest)}
    if kind == "float16":
        settings["trt_fp16_enable"] = "True"
    if kind == "int8-static":  # without it TensorRT refuses a graph whose scales are in it
        settings["trt_int8_enable"] = "True"
    return settings


def openvino_settings(threads: int, streams: int) -> dict[str, Any]:
    """Settings shared by everything that compiles a graph with OpenVINO."""
    return {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": streams,
            "ENABLE_CPU_PINNING": False}  # pinning ignores the affinity mask of this process


def session_options(threads: int) -> Any:
    """Session options shared by everything that runs a graph in ONNX Runtime."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # Planned buffers are kept for every input shape seen; without the plan, memory stays flat over varied shapes.
    options.enable_mem_pattern = False
    return options


def _check_output(graph: Path, outputs: list[str]) -> None:
    if OUTPUT not in outputs:
        raise UserError(f"graph {str(graph)!r} has no output {OUTPUT!r} (it has {', '.join(outputs)}); export it with: "
                        "distilface export")


def _unloadable(engine: str, graph: Path, error: Exception) -> UserError:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # OpenVINO begins with the place in its sources; the reason is at the end.
    openvino = engine.startswith("OpenVINO")
    reason = (lines[-1] if openvino else lines[0]) if lines else type(error).__name__
    advice = "; upgrade openvino, or use backend='onnxruntime'" if openvino else ""
    return UserError(f"{engine} can't load {str(graph)!r}: {reason.rstrip('.')}{advice}")


def _provider(name: str) -> str:
    if name not in _PROVIDERS:
        raise UserError(f"unknown provider {name!r}; allowed: {', '.join(_PROVIDERS)}")
    wanted = _PROVIDERS[name]
    if wanted not in ort.get_available_providers():
        raise UserError(f"provider {name!r} is not in this ONNX Runtime (it has "
                        f"{', '.join(ort.get_available_providers())}); install onnxruntime-gpu in place of onnxruntime "
                        "on a machine with an NVIDIA GPU, or use the cpu")
    return wanted
