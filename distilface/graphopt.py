"""Rewrites of the exported float graph that change no value and let runtimes run it fast.

The exporter's graph is right but shy of the patterns that ONNX Runtime and OpenVINO look for. Each rewrite here is an
identity in real arithmetic; `exporter.compare_with_torch` proves the result.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from distilface.onnxgraph import GraphIndex, add_initializers, remove_unused, sort_topologically


def optimize(model: Any) -> None:
    """Apply every rewrite, in place."""
    reassociate_gelu(model)
    drop_attention_biases(model)
    flatten_tokens(model)
    remove_unused(model.graph)
    sort_topologically(model.graph)


def reassociate_gelu(model: Any) -> int:
    """``x * (0.5 * (1 + erf))`` to ``(x * (1 + erf)) * 0.5``, the order in which runtimes recognise GELU."""
    index = GraphIndex(model.graph)
    changed = 0
    for erf in [node for node in model.graph.node if node.op_type == "Erf"]:
        scaled = index.producer.get(erf.input[0])
        chain = [erf]
        for op_type in ("Add", "Mul", "Mul"):
            follower = _only_consumer(index, chain[-1].output[0], op_type) if chain else None
            chain = [*chain, follower] if follower is not None else []
        if scaled is None or not chain:
            continue
        _, add, halved, product = chain
        value = scaled.input[0]
        half = [name for name in halved.input if name in index.initializers]
        if len(half) != 1 or value not in product.input:
            continue
        halved.input[:] = [value, add.output[0]]
        product.input[:] = [halved.output[0], half[0]]
        changed += 1
    return changed


def flatten_tokens(model: Any) -> int:
    """Run the encoder's body on ``[tokens, channels]`` instead of ``[batch, length, channels]``.

    A two-dimensional MatMul with its bias is one Gemm, in float and in INT8, where the three-dimensional one is two
    operators. Only attention needs batch and length apart: its split into heads takes its target shape from the input
    ids, once for all layers. Returns how many MatMuls became two-dimensional.
    """
    graph = model.graph
    output = graph.output[0].name
    states = f"{output}_tokens"
    _rename(graph, output, states)
    index = GraphIndex(graph)
    flat: dict[str, str] = {}
    back: dict[str, str] = {}
    nodes: list[Any] = []
    shapes: set[str] = set()
    weights = {node.output[0] for node in index.weight_matmuls()}

    def reshape(source: str, target: str, name: str) -> str:
        nodes.append(helper.make_node("Reshape", [source, target], [name], name))
        return name

    def flattened(name: str, channels: int) -> str:
        if name not in flat:
            flat[name] = reshape(name, constant_shape(-1, channels), f"{name}_flat")
        return flat[name]

    def constant_shape(*sizes: int) -> str:
        name = "shape_" + "_".join(str(size).replace("-", "m") for size in sizes)
        if name not in shapes:
            shapes.add(name)
            add_initializers(graph, {name: np.array(sizes, dtype=np.int64)})
        return name

    def with_batch(*sizes: int) -> str:
        """``[batch, length, *sizes]`` as a tensor, made once."""
        name = "shape_batch_" + "_".join(map(str, sizes))
        if name not in shapes:
            shapes.add(name)
            nodes.append(helper.make_node("Concat", ["ids_shape", constant_shape(*sizes)], [name], name, axis=0))
        return name

    nodes.append(helper.make_node("Shape", ["input_ids"], ["ids_shape"], "ids_shape"))
    channels: dict[str, int] = {}
    for node in list(graph.node):
        if node.output[0] in weights:
            rows, columns = index.initializers[node.input[1]].dims
            if node.input[0] not in channels:
                node.input[0] = flattened(node.input[0], rows)
            channels[node.output[0]] = columns
            continue
        computed = [name for name in node.input if name and name not in index.initializers]
        inside = [name for name in computed if name in channels]
        if _is_head_merge(index, node, weights):
            size = next(int(index.initializers[item.input[1]].dims[0])
                        for item in index.consumers[node.output[0]] if item.output[0] in weights)
            node.input[1] = constant_shape(-1, size)
            del node.attribute[:]
            channels[node.output[0]] = size
        elif not inside:
            continue
        elif (node.op_type in _TOKENWISE and _constants_are_rows(index, node)
              and all(name in channels or name in flat for name in computed)):
            for slot, name in enumerate(node.input):
                node.input[slot] = flat.get(name, name) if name not in channels else name
            channels[node.output[0]] = channels[inside[0]]
        elif node.op_type == "Reshape" and (heads := _head_split(index, node, channels[node.input[0]])):
            node.input[1] = with_batch(*heads)
            del node.attribute[:]
        else:
            for slot, name in enumerate(node.input):
                if name in channels:
                    back.setdefault(name, f"{name}_batch")
                    node.input[slot] = back[name]
    if states in channels:
        back[states] = output
    else:
        _rename(graph, states, output)
    for name, target in back.items():
        reshape(name, with_batch(channels[name]), target)
        if target == output:
            _rename(graph, f"{states}_batch", output)
    graph.node.extend(nodes)
    return len(weights)


_TOKENWISE = ("Add", "Mul", "Div", "Sub", "Erf", "Tanh", "Sigmoid", "Relu", "LayerNormalization", "Gelu")


def _constants_are_rows(index: GraphIndex, node: Any) -> bool:
    return all(len(index.initializers[name].dims) <= 1 for name in node.input if name in index.initializers)


def _is_head_merge(index: GraphIndex, node: Any, weights: set[str]) -> bool:
    """Heads back together: ``Transpose -> Reshape ->`` output projection."""
    if node.op_type != "Reshape":
        return False
    made_by = index.producer.get(node.input[0])
    return (made_by is not None and made_by.op_type == "Transpose"
            and any(item.output[0] in weights for item in index.consumers.get(node.output[0], [])))


def _head_split(index: GraphIndex, node: Any, channels: int) -> tuple[int, int] | None:
    """Heads and their width, when the Reshape splits ``[batch, length, h]`` into ``[batch, length, heads, width]``."""
    concat = index.producer.get(node.input[1])
    parts = [index.constant(name) for name in concat.input] if concat is not None else []
    sizes = [int(size) for part in parts if part is not None for size in part.reshape(-1)]
    if len(sizes) == 2 and -1 in sizes:
        sizes[sizes.index(-1)] = channels // max(sizes)
    return (sizes[0], sizes[1]) if len(sizes) == 2 and sizes[0] * sizes[1] == channels else None


def _rename(graph: Any, old: str, new: str) -> None:
    for node in graph.node:
        for names in (node.input, node.output):
            for slot, item in enumerate(names):
                if item == old:
                    names[slot] = new


def drop_attention_biases(model: Any) -> int:
    """Take the biases of key and value out of attention; returns how many layers were changed.

    A key bias adds the same number to all scores of one query, which softmax ignores. Attention weights sum to one,
    so a value bias passes through unchanged and moves into the output projection: ``b_o + b_v W_o``.
    """
    graph = model.graph
    changed = 0
    for softmax in [node for node in graph.node if node.op_type == "Softmax"]:
        index = GraphIndex(graph)
        context = next((node for node in index.consumers.get(softmax.output[0], []) if node.op_type == "MatMul"), None)
        if context is None:
            continue
        value = bias_add(index, context.input[1])
        output = _output_projection(index, context.output[0])
        if value is not None and output is not None:
            _move_value_bias(index, value, *output)
        scores = _score_product(index, softmax.input[0])
        key = bias_add(index, scores.input[1]) if scores is not None else None
        if key is not None:
            _skip(index, key)
        changed += key is not None and value is not None
    return changed


def bias_add(index: GraphIndex, name: str) -> Any | None:
    """The ``Add`` of a constant bias that ``name`` comes from, through Reshape and Transpose only."""
    node = index.producer.get(name)
    while node is not None and node.op_type in ("Reshape", "Transpose"):
        node = index.producer.get(node.input[0])
    if node is None or node.op_type != "Add" or _bias_name(index, node) is None:
        return None
    return node


def _score_product(index: GraphIndex, name: str) -> Any | None:
    """The query-key MatMul behind the scores, through scaling and the masks that are added."""
    node = index.producer.get(name)
    while node is not None and node.op_type in ("Mul", "Div", "Add"):
        candidates = [index.producer[item] for item in node.input if item in index.producer]
        node = next((item for item in candidates if item.op_type in ("Mul", "Div", "Add", "MatMul")
                     and _reaches_matmul(index, item)), None)
    return node if node is not None and node.op_type == "MatMul" else None


def _reaches_matmul(index: GraphIndex, node: Any) -> bool:
    while node is not None and node.op_type in ("Mul", "Div", "Add"):
        made = [index.producer[item] for item in node.input if item in index.producer]
        node = next((item for item in made if item.op_type in ("Mul", "Div", "Add", "MatMul")), None)
    return node is not None and node.op_type == "MatMul"


def _output_projection(index: GraphIndex, name: str) -> tuple[Any, Any] | None:
    """The MatMul and bias Add that the merged heads go into."""
    consumers = index.consumers.get(name, [])
    while len(consumers) == 1 and consumers[0].op_type in ("Transpose", "Reshape"):
        consumers = index.consumers.get(consumers[0].output[0], [])
    if len(consumers) != 1 or consumers[0].op_type != "MatMul" or consumers[0].input[1] not in index.initializers:
        return None
    add = _only_consumer(index, consumers[0].output[0], "Add")
    if add is None or _bias_name(index, add) is None:
        return None
    return consumers[0], add


def _move_value_bias(index: GraphIndex, value: Any, matmul: Any, add: Any) -> None:
    bias = _float64(index, _bias_name(index, value))
    weight = _float64(index, matmul.input[1])
    name = _bias_name(index, add)
    if bias.shape[0] != weight.shape[0] or name is None:
        return
    moved = (_float64(index, name) + bias @ weight).astype(np.float32)
    index.initializers[name].CopyFrom(numpy_helper.from_array(moved, name))
    _skip(index, value)


def _skip(index: GraphIndex, add: Any) -> None:
    """Let the readers of a bias Add read its other input."""
    source = next(name for name in add.input if name not in index.initializers)
    for reader in index.consumers[add.output[0]]:
        for slot, name in enumerate(reader.input):
            if name == add.output[0]:
                reader.input[slot] = source


def _bias_name(index: GraphIndex, add: Any) -> str | None:
    names = [name for name in add.input if name in index.initializers and len(index.initializers[name].dims) == 1]
    return names[0] if len(names) == 1 and len(index.consumers[names[0]]) == 1 else None


def _float64(index: GraphIndex, name: str | None) -> NDArray[np.float64]:
    value = index.constant(name or "")
    assert value is not None
    return value.astype(np.float64)


def _only_consumer(index: GraphIndex, name: str, op_type: str) -> Any | None:
    consumers = index.consumers.get(name, [])
    return consumers[0] if len(consumers) == 1 and consumers[0].op_type == op_type else None
