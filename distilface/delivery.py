"""What an app takes: one variant in a folder of its own, its tokenizer in the graph, the ORT format."""

from __future__ import annotations

import contextlib
import io
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from distilface.artifact import (
    CARD,
    VARIANT_FILES,
    Bundle,
    Form,
    atomic_directory,
    check_output,
    write_manifest,
)
from distilface.errors import GateError, require
from distilface.modelcard import write_card
from distilface.parity import FP32_FLOOR, cosines
from distilface.runtime import Encoder
from distilface.tokenizer import Tokenizer

MAIN_GRAPH = VARIANT_FILES["fp32"]


def deliver(bundle: str | Path, out: str | Path, variant: str | None = None, tokenizer_in_graph: bool = False,
            ort_format: bool = False, overwrite: bool = False,
            progress: Callable[[str], None] | None = None) -> Bundle:
    """Write one variant of a bundle as a bundle of its own, its graph being ``onnx/model.onnx``.

    That is the file that consumers without a choice read: text-embeddings-inference, and defaults elsewhere.

    Args:
        variant: which graph; ``int8`` and None as everywhere.
        tokenizer_in_graph, ort_format: add these forms of it (see `make_forms`).

    Raises:
        UserError: no such bundle or variant, or an output that is in the way.
        GateError: the graph was altered, or a form does not give the variant's vectors.
    """
    opened = Bundle.open(bundle)
    name = opened.resolve_variant(variant)
    record = opened.manifest.variants[name]
    out = check_output(out, overwrite, [opened.folder])
    require_forms(tokenizer_in_graph, ort_format)
    say = progress or (lambda step: None)
    say("copying")
    graphs = {item.file for item in opened.manifest.variants.values()} | {
        file for form in opened.manifest.forms for file in form.files}
    kept = set(opened.manifest.files) - graphs
    # They get a new sha256 below: an altered one must not pass for whole. The card is written anew.
    opened.check_files(kept - {CARD} | {record.file})
    with atomic_directory(out, overwrite) as folder:
        for relative in kept:
            (folder / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(opened.folder / relative, folder / relative)
        (folder / "onnx").mkdir(exist_ok=True)
        shutil.copyfile(opened.folder / record.file, folder / MAIN_GRAPH)
        scores = {key: value for key, value in opened.manifest.scores.items() if key == name}
        manifest = opened.manifest.model_copy(update={
            "variants": {name: record.model_copy(update={"file": MAIN_GRAPH})}, "scores": scores, "forms": []})
        write_manifest(folder, manifest)
        forms = make_forms(Bundle(folder, manifest), name, tokenizer_in_graph, ort_format, say)
        manifest = manifest.model_copy(update={"forms": forms})
        write_card(folder, manifest)
        write_manifest(folder, manifest)
    return Bundle.open(out)


def make_forms(bundle: Bundle, variant: str, tokenizer_in_graph: bool, ort_format: bool,
               progress: Callable[[str], None]) -> list[Form]:
    """Write further forms of a variant beside its graph and prove each on the golden texts.

    ``NAME_text.onnx`` takes strings (see `textgraph`). ``NAME.ort`` is ONNX Runtime's own format, optimized ahead, with
    ``NAME.required_operators.config``: the operators that a minimal build of ONNX Runtime has to hold for it.
    """
    forms = []
    if tokenizer_in_graph:
        progress("putting the tokenizer in the graph")
        forms.append(_text_form(bundle, variant))
    if ort_format:
        progress("converting to the ORT format")
        forms.append(_ort_form(bundle, variant))
    return forms


def require_forms(tokenizer_in_graph: bool, ort_format: bool) -> None:
    """Ask for the packages before the work begins."""
    if tokenizer_in_graph:
        require("onnxruntime_extensions", "mobile", "--tokenizer-in-graph")
    if tokenizer_in_graph or ort_format:
        require("onnx", "mobile", "another form of a graph")


def _text_form(bundle: Bundle, variant: str) -> Form:
    import onnxruntime as ort

    from distilface.textgraph import write_text_graph

    extensions = require("onnxruntime_extensions", "mobile", "--tokenizer-in-graph")
    graph = bundle.graph(variant)
    file = graph.with_name(f"{graph.stem}_text.onnx")
    tokenizer = Tokenizer.load(bundle.folder, bundle.manifest.max_seq_length)
    differences = write_text_graph(graph, tokenizer, file)
    options = ort.SessionOptions()
    options.register_custom_ops_library(extensions.get_library_path())
    options.log_severity_level = 3
    session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    golden = bundle.golden()
    texts = np.array([item.text for item in golden], dtype=object)
    vectors, rows = session.run(["sentence_embedding", "input_ids"], {"text": texts})
    for item, row in zip(golden, rows, strict=True):
        if row[: len(item.ids)].tolist() != item.ids:
            raise GateError(f"the tokenizer in the graph gives other ids than tokenizer.json for {item.text[:40]!r}: "
                            f"{row[: len(item.ids)].tolist()[:12]}, expected {item.ids[:12]}")
    _prove(bundle, variant, vectors, file)
    return Form(kind="text", variant=variant, file=_relative(bundle, file), size=file.stat().st_size,
                needs="the custom operators of onnxruntime-extensions", differences=differences)


def _ort_form(bundle: Bundle, variant: str) -> Form:
    from onnxruntime.tools.convert_onnx_models_to_ort import OptimizationStyle, convert_onnx_models_to_ort

    graph = bundle.graph(variant)
    file, operators = graph.with_suffix(".ort"), graph.with_name(f"{graph.stem}.required_operators.config")
    with tempfile.TemporaryDirectory(prefix="distilface-ort-") as work, _quiet_converter():
        source = Path(work, "in", graph.name)
        source.parent.mkdir()
        shutil.copyfile(graph, source)
        convert_onnx_models_to_ort(source, Path(work, "out"), [OptimizationStyle.Fixed])
        shutil.copyfile(Path(work, "out", file.name), file)
        lines = Path(work, "out", operators.name).read_text(encoding="utf-8").splitlines()
    named = [line for line in lines if line and not line.startswith("#")]  # comments name folders of this machine
    operators.write_text("\n".join(named) + "\n", encoding="utf-8", newline="\n")
    encoder = Encoder(file, Tokenizer.load(bundle.folder, bundle.manifest.max_seq_length), variant=variant)
    _prove(bundle, variant, np.concatenate([encoder.embed_batch([item.ids]) for item in bundle.golden()]), file)
    return Form(kind="ort", variant=variant, file=_relative(bundle, file), size=file.stat().st_size,
                needs="ONNX Runtime, or a minimal build of it with the required operators",
                required_operators=_relative(bundle, operators))


@contextlib.contextmanager
def _quiet_converter() -> Iterator[None]:
    """The converter prints its steps and logs what it wrote."""
    logging.disable(logging.INFO)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(logging.NOTSET)


def _prove(bundle: Bundle, variant: str, vectors: NDArray[np.float32], file: Path) -> None:
    floor = FP32_FLOOR if variant == "fp32" else bundle.manifest.variants[variant].cosine_floor
    expected = np.array([item.vector for item in bundle.golden()], dtype=np.float32)
    cosine = float(cosines(vectors, expected).min())
    if not cosine >= floor:
        raise GateError(f"{file.name} gives other vectors than {variant}: cosine to the golden ones {cosine:.6f}, "
                        f"floor {floor}")


def _relative(bundle: Bundle, file: Path) -> str:
    return file.relative_to(bundle.folder).as_posix()
