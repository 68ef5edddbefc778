"""What is tried: float32 models (layers, vocabulary), precisions of each, and how large a graph will be."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from pathlib import Path

from distilface.errors import UserError
from distilface.quantization.codebooks import CODES, PIECE
from distilface.quantization.recipe import BITS, BLOCK_SIZES, Mode, Tables
from distilface.quantization.tables import TABLE_BLOCK_SIZE

COVERAGES = (100.0, 99.95, 99.9, 99.8, 99.7, 99.6, 99.5, 99.3, 99.0, 98.5, 98.0, 97.0, 96.0, 95.0, 93.0, 90.0)
"""Percent of the corpus's tokens whose pieces stay; 100 leaves the vocabulary whole."""
RECIPES: tuple[tuple[Mode, Tables], ...] = (
    ("static", "int8"), ("w8", "int8"), ("token", "int8"), ("dynamic", "int8"), ("w4", "int8"), ("static", "int4"),
    ("w8", "int4"), ("token", "int4"), ("dynamic", "int4"), ("w4", "int4"), ("static", "pq"), ("w8", "pq"),
    ("token", "pq"), ("dynamic", "pq"), ("w4", "pq"))
MODES = tuple(dict.fromkeys(mode for mode, _ in RECIPES))
TOLERANCE = 1.005
"""A predicted size is passed over only where it exceeds the limit by more than this factor."""


@dataclass(frozen=True)
class Base:
    """A float32 model to quantize.

    Attributes:
        coverage: of the vocabulary; 100 for a whole one.
        layers: those of the model that were kept, and then taught by it; None for all.
    """

    coverage: float = 100.0
    layers: tuple[int, ...] | None = None

    @property
    def slug(self) -> str:
        layers = "all" if self.layers is None else "-".join(map(str, self.layers))
        return f"layers-{layers}_tokens-{self.coverage:g}"

    @property
    def words(self) -> str:
        parts = [] if self.layers is None else [f"layers {','.join(map(str, self.layers))}"]
        return ", ".join([*parts, *([] if self.coverage == 100 else [f"{self.coverage:g} % of tokens"])])


@dataclass(frozen=True)
class Candidate:
    """One graph to make.

    Attributes:
        mode: None is the base's float32 graph.
        mixed: of ``static``: the fewest nodes stay float with which it loses no more than so many points on the dev
            pairs against its float32 graph; None for none at all.
    """

    base: Base
    mode: Mode | None
    tables: Tables = "fp32"
    mixed: float | None = None

    @property
    def slug(self) -> str:
        precision = "fp32" if self.mode is None else f"{self.mode}-{self.tables}"
        precision += "" if self.mixed is None else f"-mixed-{self.mixed:g}"
        return f"{self.base.slug}_{precision}"

    @property
    def words(self) -> str:
        if self.mode is None:
            precision = "fp32"
        else:
            body = {"w8": "8-bit weights", "w4": "4-bit weights"}.get(self.mode, f"INT8 {self.mode}")
            table = {"int4": "4-bit", "pq": "2-bit"}.get(self.tables, "INT8")
            precision = f"{body}, {table} table{'' if self.mixed is None else ', mixed precision'}"
        return "; ".join(part for part in (self.base.words, precision) if part)


@dataclass(frozen=True)
class GraphParts:
    """What a float32 graph is made of.

    Attributes:
        rows, width: of the table of words.
        tables: values of the other embedding tables, and their rows.
        body, outputs: values of the MatMul weights and their output channels, of all ``layers`` together.
        rest: bytes of everything else.
    """

    rows: int
    width: int
    tables: int
    table_rows: int
    body: int
    outputs: int
    layers: int
    rest: int

    @classmethod
    def of(cls, graph: Path, layers: int) -> GraphParts:
        """Take the float32 graph of a bundle apart."""
        import onnx

        from distilface.onnxgraph import GraphIndex

        model = onnx.load(str(graph))
        index = GraphIndex(model.graph)
        rows = width = tables = table_rows = 0
        for node in model.graph.node:
            tensor = index.initializers.get(node.input[0]) if node.op_type == "Gather" else None
            if tensor is None or len(tensor.dims) != 2 or tensor.data_type != onnx.TensorProto.FLOAT:
                continue
            if node.input[1] == "input_ids":
                rows, width = tensor.dims
            else:
                tables, table_rows = tables + tensor.dims[0] * tensor.dims[1], table_rows + tensor.dims[0]
        if not rows:
            raise UserError(f"{str(graph)!r} has no table of words; only encoders exported here can be compressed")
        shapes = [index.initializers[node.input[1]].dims for node in index.weight_matmuls()]
        body = sum(shape[0] * shape[1] for shape in shapes)
        rest = graph.stat().st_size - 4 * (rows * width + tables + body)
        return cls(rows, width, tables, table_rows, body, sum(shape[1] for shape in shapes), layers, rest)

    def predicted(self, mode: Mode, tables: Tables, rows: int, layers: int | None = None) -> int:
        """Bytes of the graph with ``rows`` words and ``layers`` layers (default: as it is)."""
        share = 1.0 if layers is None else layers / self.layers
        if mode in BITS:
            bits = BITS[mode]  # each block has a float32 scale and a zero point
            weights = self.body * (bits / 8 + (4 + bits / 8) / BLOCK_SIZES[bits])
        else:
            weights = self.body + 4 * self.outputs
        block = gcd(self.width, TABLE_BLOCK_SIZE)
        row = {"int4": self.width / 2 + 2 * self.width / block, "pq": self.width / PIECE}.get(tables, self.width + 4)
        word = rows * row + (2 * CODES * self.width if tables == "pq" else 0)
        return int(share * (weights + self.rest) + word + self.tables + 4 * self.table_rows)
