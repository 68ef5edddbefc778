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


def open_engine(backend: Backend, graph: Path, threads: int, streams: int, provider: str) -> Engine:
    """Load ``graph``.

    Args:
        threads: of all runs together.
        streams: how many runs go side by side; each has ``threads / streams`` of the threads.

    Raises:
        UserError: the file can't be loaded, lacks the pooled output, or the provider isn't there.
    """
    if backend == "openvino":
        return OpenVinoEngine(graph, threads, streams, provider)
    # Callers bring a thread each, so one session with fewer threads of its own serves all streams.
    return OnnxRuntimeEngine(graph, threads // streams, provider)


class OnnxRuntimeEngine:
    """A session of ONNX Runtime."""

    def __init__(self, graph: Path, threads: int, provider: str) -> None:
        providers = [_provider(provider)]
        if provider != "cpu":
            providers.append("CPUExecutionProvider")  # shape arithmetic has no GPU kernels
        try:
            self._session = ort.InferenceSession(str(graph), session_options(threads), providers=providers)
        except Exception as error:  # the binding's own classes derive from Exception
            raise _unloadable(f"ONNX Runtime {ort.__version__}", graph, error) from None
        if self._session.get_providers()[0] != providers[0]:
            raise UserError(f"provider {provider!r} could not be started (ONNX Runtime fell back to "
                            f"{self._session.get_providers()[0]}); check the driver, or use provider='cpu'")
        self.inputs = [item.name for item in self._session.get_inputs()]
        shapes = {item.name: item.shape for item in self._session.get_outputs()}
        self.outputs = list(shapes)
        _check_output(graph, self.outputs)
        self.dim = int(shapes[OUTPUT][-1])

    def run(self, feed: Feed) -> Vectors:
        """See `Engine`."""
        return self._session.run([OUTPUT], feed)[0]  # type: ignore[no-any-return]


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
    reason = (lines[-1] if engine.startswith("OpenVINO") else lines[0]) if lines else type(error).__name__
    return UserError(f"{engine} can't load {str(graph)!r}: {reason}")


def _provider(name: str) -> str:
    if name not in _PROVIDERS:
        raise UserError(f"unknown provider {name!r}; allowed: {', '.join(_PROVIDERS)}")
    wanted = _PROVIDERS[name]
    if wanted not in ort.get_available_providers():
        raise UserError(f"provider {name!r} is not in this ONNX Runtime (it has "
                        f"{', '.join(ort.get_available_providers())}); install onnxruntime-gpu in place of onnxruntime "
                        "on a machine with an NVIDIA GPU, or use the cpu")
    return wanted
