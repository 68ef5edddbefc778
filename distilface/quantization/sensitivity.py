"""How much each node's quantization moves the vectors, and so which nodes to leave in float.

All groups are judged with one session: the float graph with every activation rounded in steps that are inputs. Steps
too fine to change a value leave a group in float; real steps and rounded weights quantize it, without another load.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import helper

from distilface.batching import batches_by_length
from distilface.cpu import available_cpus
from distilface.errors import UserError
from distilface.onnxgraph import GraphIndex, add_initializers, sort_topologically
from distilface.parity import cosines
from distilface.quantization.ranges import LEVELS
from distilface.quantization.static import Solution
from distilface.runtime import session_options
from distilface.tokenizer import Tokenizer

Array = NDArray[np.float32]

PROBE_TEXTS = 16
AUTO = "auto"
AUTO_SHARE = 0.5
"""Most of the groups that ``auto`` leaves in float; with more there is little INT8 left to speak of."""
NO_STEP = np.float32(2.0**-60)
"""Rounding to a power of two so small changes no float32 value."""


def effects(model: Any, solutions: Mapping[str, Solution], tokenizer: Tokenizer, texts: Sequence[str],
            progress: Callable[[int, int], None] | None = None) -> dict[str, float]:
    """Mean cosine distance of the sentence vectors when one group alone is quantized, by its source; worst first.

    Args:
        model: the float32 graph with a ``sentence_embedding``.
        texts: the first `PROBE_TEXTS` are used.
    """
    probe = _Probe(model, solutions, tokenizer, texts[:PROBE_TEXTS])
    reference = probe.vectors({})
    found: dict[str, float] = {}
    for done, (source, solution) in enumerate(solutions.items()):
        found[source] = float(1 - cosines(probe.vectors(_emulation(solution)), reference).mean())
        if progress is not None:
            progress(done + 1, len(solutions))
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def sources_to_keep(keep: str, effects: Mapping[str, float], solutions: Mapping[str, Solution]) -> list[str] | None:
    """The groups that ``keep`` leaves in float; None for ``auto``, which the gate decides.

    Args:
        keep: ``auto``; a number: so many of the largest effect; or names of nodes or groups, separated by commas.

    Raises:
        UserError: an unknown name, or a number that is too large.
    """
    if keep == AUTO:
        return None
    if keep.isdecimal():
        if int(keep) > len(effects):
            raise UserError(f"keep_float is {keep}; this graph has {len(effects)} groups of MatMuls: allowed are 0 to "
                            f"{len(effects)}, auto, or names")
        return list(effects)[: int(keep)]
    owners = {name: source for source, solution in solutions.items() for name in (source, *solution.group.nodes)}
    wanted = [name.strip() for name in keep.split(",")]
    unknown = [name for name in wanted if name not in owners]
    if unknown:
        raise UserError(f"keep_float names {unknown[0]!r}; allowed: auto, a number, or names among "
                        f"{', '.join(solutions)}")
    return list(dict.fromkeys(owners[name] for name in wanted))


def fewest(ranked: Sequence[str], works: Callable[[list[str]], bool]) -> list[str]:
    """The shortest head of ``ranked`` that works, at most `AUTO_SHARE` of it; empty where none does.

    Doubles, then bisects: works with few is assumed to mean works with more. The last call of ``works`` is for what is
    returned.
    """
    if works([]):
        return []
    most = int(AUTO_SHARE * len(ranked))
    failed, count = 0, min(1, most)
    while count and not works(list(ranked[:count])):
        failed, count = count, (min(2 * count, most) if count < most else 0)
    last = count
    while count - failed > 1:
        last = (failed + count) // 2
        if works(list(ranked[:last])):
            count = last
        else:
            failed = last
    if last != count or not count:
        works(list(ranked[:count]))
    return list(ranked[:count])


class _Probe:
    def __init__(self, model: Any, solutions: Mapping[str, Solution], tokenizer: Tokenizer,
                 texts: Sequence[str]) -> None:
        self.session = ort.InferenceSession(_switchable(model, solutions).SerializeToString(),
                                            session_options(available_cpus()), providers=["CPUExecutionProvider"])
        wanted = {item.name for item in self.session.get_inputs()}
        rows = tokenizer.encode_batch(texts)
        self.order = batches_by_length([len(row) for row in rows], batch_tokens=1024)
        self.feeds = []
        for indices in self.order:
            feed = tokenizer.pad([rows[index] for index in indices])
            feed["token_type_ids"] = np.zeros_like(feed["input_ids"])
            self.feeds.append({name: value for name, value in feed.items() if name in wanted})

    def vectors(self, overrides: Mapping[str, Array]) -> Array:
        """In batch order, the same every time."""
        return np.concatenate([self.session.run(["sentence_embedding"], {**feed, **overrides})[0]
                               for feed in self.feeds])


def _switchable(model: Any, solutions: Mapping[str, Solution]) -> Any:
    """``model`` with ``clip(round(x / step), floor, ceiling) * step`` before, and a drift after, every group's MatMuls.

    Those, and the weights, are initialisers that a run may override.
    """
    switchable = onnx.ModelProto()
    switchable.CopyFrom(model)
    graph = switchable.graph
    index = GraphIndex(graph)
    constants: dict[str, Any] = {}
    nodes: list[Any] = []
    overridable: list[str] = []
    for source, solution in solutions.items():
        step, floor, ceiling = (f"{source}_{part}" for part in ("step", "floor", "ceiling"))
        inputs = solution.choice.gains.shape[0]
        constants |= {step: np.full(inputs, NO_STEP), floor: np.float32(-np.inf), ceiling: np.float32(np.inf)}
        names = [f"{source}_{part}" for part in ("steps", "rounded", "clipped", "emulated")]
        nodes += [
            helper.make_node("Div", [source, step], [names[0]], names[0]),
            helper.make_node("Round", [names[0]], [names[1]], names[1]),
            helper.make_node("Clip", [names[1], floor, ceiling], [names[2]], names[2]),
            helper.make_node("Mul", [names[2], step], [names[3]], names[3]),
        ]
        overridable += [step, floor, ceiling]
        for output, name, weight in zip(solution.group.matmuls, solution.group.weights, solution.weights, strict=True):
            node = index.producer[output]
            drift, raw = f"{output}_drift", f"{output}_raw"
            constants[drift] = np.zeros(weight.drift.shape, dtype=np.float32)
            node.input[0], node.output[0] = names[3], raw
            nodes.append(helper.make_node("Sub", [raw, drift], [output], f"{output}_correct"))
            overridable += [drift, name]
    add_initializers(graph, constants)
    graph.node.extend(nodes)
    shapes = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    graph.input.extend(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shapes[name])
                       for name in dict.fromkeys(overridable))
    sort_topologically(graph)
    return switchable


def _emulation(solution: Solution) -> dict[str, Array]:
    """What to override so that ``solution`` is in force."""
    choice, group = solution.choice, solution.group
    factors = np.ones(len(choice.gains), dtype=np.float32) if choice.factors is None else choice.factors
    values: dict[str, Array] = {
        f"{group.source}_step": (factors * np.float32(choice.scale)).astype(np.float32),
        f"{group.source}_floor": np.array(-choice.zero_point, dtype=np.float32),
        f"{group.source}_ceiling": np.array(LEVELS - 1 - choice.zero_point, dtype=np.float32),
    }
    for output, name, weight in zip(group.matmuls, group.weights, solution.weights, strict=True):
        values[name] = weight.integers.astype(np.float32) * weight.scale / factors[:, None]
        values[f"{output}_drift"] = weight.drift
    return values
