"""The torch-free runtime: awkward texts, neighbours, limits, threads, and graphs that ask for other inputs."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import pickle
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from distilface.artifact import Bundle
from distilface.errors import DistilfaceError, GateError, UserError
from distilface.parity import batch_dependence, cosines
from distilface.runtime import Encoder
from distilface.runtime.choice import choose_backend
from distilface.runtime.engines import OnnxRuntimeEngine, tensorrt_settings
from distilface.runtime.placement import placement
from distilface.tokenizer import Tokenizer

VARIANTS = ("fp32", "int8-static", "int8-dynamic")
AWKWARD = ["", "   ", "\x00", "\u200b", "😀", "[SEP]", "half an emoji \ud83d"]
LONG = "the light in the kitchen is on " * 10  # some 70 words, over the limit of 64 tokens
MIXED = ["play some quiet music", "a", LONG, "Hello, World!", "", "is the front door locked", "a b c d e f g h"] * 4


@pytest.fixture(scope="module")
def encoder(tiny_bundle: Path) -> Encoder:
    return Encoder.load(tiny_bundle)


# ----------------------------------------------------------------- what encode returns


@pytest.mark.parametrize("variant", VARIANTS)
def test_awkward_texts(tiny_bundle: Path, variant: str) -> None:
    vectors = Encoder.load(tiny_bundle, variant).encode(AWKWARD)
    assert vectors.shape == (7, 32) and vectors.dtype == np.float32
    assert np.isfinite(vectors).all()
    np.testing.assert_allclose(np.linalg.norm(vectors.astype(np.float64), axis=1), 1, atol=1e-5)
    assert cosines(vectors[1:4], np.repeat(vectors[:1], 3, axis=0)).min() >= 0.999999  # the four blank ones
    assert cosines(vectors[4:5], vectors[:1])[0] < 0.999  # an emoji is not blank


def test_a_lone_surrogate_is_read_as_the_replacement_character(encoder: Encoder) -> None:
    np.testing.assert_allclose(*encoder.encode(["half \ud83d", "half \ufffd"]), atol=1e-6)


def test_no_texts(encoder: Encoder) -> None:
    vectors = encoder.encode([])
    assert vectors.shape == (0, 32) and vectors.dtype == np.float32


@pytest.mark.parametrize(("texts", "message"), [
    ([None], "index 0 is NoneType"), (["a", 1.5], "index 1 is float"), ("bare", "list of texts")])
def test_what_is_no_list_of_texts(encoder: Encoder, texts: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        encoder.encode(texts)


def test_a_bare_string_and_an_iterator(encoder: Encoder) -> None:
    expected = encoder.encode(["a", "b"])
    np.testing.assert_array_equal(encoder.encode(text for text in ("a", "b")), expected)  # type: ignore[arg-type]


@pytest.mark.parametrize("variant", ["fp32", "int8-static"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("batch_tokens", [1, 64, 512, 1_000_000])
def test_order_is_kept_whatever_the_batches(tiny_bundle: Path, variant: str, threads: int, batch_tokens: int) -> None:
    encoder = Encoder.load(tiny_bundle, variant, threads=threads)
    alone = np.concatenate([encoder.encode([text]) for text in MIXED[:7]])
    found = encoder.encode(MIXED, batch_tokens=batch_tokens)
    assert cosines(found, np.tile(alone, (4, 1))).min() >= 0.999999


def test_the_vectors_are_those_of_torch(tiny_bundle: Path, checkpoint: Path, encoder: Encoder) -> None:
    from distilface.encoder import SentenceEncoder

    texts = [*MIXED[:7], *AWKWARD]
    assert cosines(encoder.encode(texts), SentenceEncoder.load(checkpoint).encode(texts)).min() >= 0.99999


# ----------------------------------------------------------------- padding, neighbours, limits


def test_padding_to_the_limit_changes_nothing(encoder: Encoder) -> None:
    (row,) = encoder.tokenizer.encode_batch(["Hello, World!"])
    alone = encoder.feed([row])
    wide = {name: np.pad(array, ((0, 0), (0, 64 - len(row)))) for name, array in alone.items()}
    session = ort.InferenceSession(str(encoder.graph), providers=["CPUExecutionProvider"])
    states, vector = session.run(None, alone)
    wide_states, padded = session.run(None, wide)
    assert vector.shape == padded.shape == (1, 32)
    np.testing.assert_allclose(np.linalg.norm(np.concatenate([vector, padded]), axis=1), 1, atol=1e-5)
    assert cosines(vector, padded)[0] >= 0.999999
    # The same check fails for what consumers get wrong, so it can fail.
    assert cosines(vector, wide_states.mean(axis=1))[0] < 0.999
    assert cosines(vector, states[:, 0])[0] < 0.999


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_vector_and_its_neighbours(tiny_bundle: Path, variant: str) -> None:
    """Static vectors never depend on the company; dynamic ones stay over the floor the manifest promises."""
    encoder, record = Encoder.load(tiny_bundle, variant), Bundle.open(tiny_bundle).variant(variant)
    short, long = encoder.tokenizer.encode_batch(["Hello, World!", LONG])
    fp32 = Encoder.load(tiny_bundle).embed_batch([short])
    alone, beside = encoder.embed_batch([short]), encoder.embed_batch([short, long])[:1]
    if variant == "int8-dynamic":
        assert not record.batch_invariant
        assert record.batch_dependence < 0.999999
        assert min(cosines(alone, fp32)[0], cosines(beside, fp32)[0]) >= record.cosine_floor
        assert batch_dependence(encoder) == pytest.approx(record.batch_dependence, abs=0.01)
    else:
        assert record.batch_invariant
        assert cosines(alone, beside)[0] >= 0.999999


def test_over_long_text_equals_its_truncated_form_and_is_reported(
        encoder: Encoder, caplog: pytest.LogCaptureFixture) -> None:
    exact = "light " * 62  # 64 tokens with [CLS] and [SEP]
    with caplog.at_level(logging.WARNING, "distilface.runtime"):
        expected = encoder.encode([exact])
        assert caplog.records == []
        found = encoder.encode(["a", exact + "and a hundred thousand more " * 20_000, exact + "music"])
    np.testing.assert_allclose(found[1:], np.repeat(expected, 2, axis=0), atol=1e-6)
    (record,) = caplog.records
    assert "2 of 3 texts are longer than 64 tokens" in record.getMessage() and "index 1" in record.getMessage()


def test_a_lower_limit_cuts_earlier(tiny_bundle: Path) -> None:
    shorter = Encoder.load(tiny_bundle, max_seq_length=5)
    assert shorter.max_seq_length == 5
    np.testing.assert_allclose(*shorter.encode(["light light light", LONG.replace("the", "light") and "light " * 60]),
                               atol=1e-6)


@pytest.mark.parametrize("limit", [0, -1, 65, 10_000])
def test_a_limit_outside_the_bundles(tiny_bundle: Path, limit: int) -> None:
    with pytest.raises(UserError, match=rf"max_seq_length {limit} is outside 1\.\.64"):
        Encoder.load(tiny_bundle, max_seq_length=limit)


def test_more_ids_than_the_limit_are_refused_with_the_limit(encoder: Encoder) -> None:
    """The graph itself would answer with an opaque error about an Add or a Gather."""
    for call in (encoder.encode_ids, encoder.embed_batch):
        with pytest.raises(UserError, match=r"65.*64"):
            call([[2, 3], [5] * 65])


def test_special_tokens_are_parsed_or_escaped(tiny_bundle: Path, encoder: Encoder) -> None:
    escaping = Encoder.load(tiny_bundle, special_tokens="escape")
    spelled = "this is [ sep ] a test"
    np.testing.assert_allclose(*escaping.encode(["this is[SEP]a test", spelled]), atol=1e-6)
    assert cosines(*encoder.encode(["this is[SEP]a test", spelled])[:, None])[0] < 0.9999


# ----------------------------------------------------------------- arguments


@pytest.mark.parametrize(("arguments", "expected"), [
    ({"threads": 0}, "threads is 0"), ({"threads": -2}, "threads is -2"),
    ({"provider": "gpu"}, "'gpu'; allowed: cpu, cuda, tensorrt"),
    ({"variant": "q4"}, "'q4'; it has fp32, int8-static, int8-dynamic"),
    ({"variant": "int8-dynamic", "provider": "cuda"}, "dynamic INT8 has no GPU kernels"),
])
def test_wrong_arguments(tiny_bundle: Path, arguments: dict[str, Any], expected: str) -> None:
    with pytest.raises(UserError, match=expected) as caught:
        Encoder.load(tiny_bundle, **arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("provider", "needed"), [
    ("cuda", "CUDAExecutionProvider"), ("tensorrt", "TensorrtExecutionProvider")])
@pytest.mark.parametrize("variant", ["fp32", "int8-static"])
def test_a_gpu_that_is_not_there_is_an_error(tiny_bundle: Path, provider: str, needed: str, variant: str) -> None:
    if needed in ort.get_available_providers():
        pytest.skip("this ONNX Runtime has the provider")
    with pytest.raises(UserError, match=f"provider '{provider}' is not in this ONNX Runtime.*onnxruntime-gpu"):
        Encoder.load(tiny_bundle, variant, provider=provider)


def test_bound_inputs_and_outputs_give_the_same_vectors(tiny_bundle: Path, encoder: Encoder) -> None:
    """IO binding, which a GPU gets, with the CPU as the device."""
    feed = encoder.feed([[2, 60, 61, 3], [2, 60, 3]])
    graph = Bundle.open(tiny_bundle).graph("fp32")
    plain, bound = (OnnxRuntimeEngine(graph, 1, "cpu", bound=bound) for bound in (False, True))
    first = bound.run(feed)
    assert np.array_equal(first, plain.run(feed)) and first.dtype == np.float32
    other = bound.run(encoder.feed([[2, 70, 3]]))
    assert other.shape == (1, encoder.dim)
    assert np.array_equal(first, plain.run(feed))  # no later run writes into what an earlier one gave


def test_where_the_nodes_of_a_graph_run(encoder: Encoder) -> None:
    found = placement(encoder)
    assert set(found.nodes) == {"CPUExecutionProvider"} and found.nodes["CPUExecutionProvider"] > 16
    assert found.cpu_products == 2 * (6 + 2)  # two layers: six products with a weight, two of the attention


def test_tensorrt_never_gets_a_batch_it_did_not_plan_for(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = Encoder.load(tiny_bundle, threads=1)
    sizes: list[int] = []
    run = encoder._run
    monkeypatch.setattr(encoder, "_run", lambda engine, rows: (sizes.append(len(rows)), run(engine, rows))[1])
    encoder.encode_ids([[2, 3]] * 1100, batch_tokens=10_000)
    assert sizes == [1100]
    sizes.clear()
    encoder.provider = "tensorrt"  # its engine is open already
    encoder.encode_ids([[2, 3]] * 1100, batch_tokens=10_000)
    assert sizes == [512, 512, 76]


def test_tensorrt_plans_for_every_shape_and_keeps_the_precision() -> None:
    plain = tensorrt_settings("float32", ["input_ids", "attention_mask"], 256)
    assert plain == {"trt_profile_min_shapes": "input_ids:1x1,attention_mask:1x1",
                     "trt_profile_opt_shapes": "input_ids:16x32,attention_mask:16x32",
                     "trt_profile_max_shapes": "input_ids:512x256,attention_mask:512x256"}
    assert set(tensorrt_settings("float16", ["input_ids"], 8)) - set(plain) == {"trt_fp16_enable"}
    assert set(tensorrt_settings("int8-static", ["input_ids"], 8)) - set(plain) == {"trt_int8_enable"}
    assert tensorrt_settings("float32", ["input_ids"], 8)["trt_profile_opt_shapes"] == "input_ids:16x8"


def test_a_provider_that_falls_back_in_silence_is_an_error(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime lists CUDA when it was built with it, and quietly uses the CPU when the driver is missing."""
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"])
    genuine = ort.InferenceSession
    monkeypatch.setattr(ort, "InferenceSession",
                        lambda graph, options, **_: genuine(graph, options, providers=["CPUExecutionProvider"]))
    with pytest.raises(UserError, match="'cuda' could not be started"):
        Encoder.load(tiny_bundle, provider="cuda")


@pytest.mark.parametrize("batch_tokens", [0, -5])
def test_a_batch_without_tokens(encoder: Encoder, batch_tokens: int) -> None:
    with pytest.raises(UserError, match=f"batch_tokens is {batch_tokens}"):
        encoder.encode(["a"], batch_tokens=batch_tokens)


def test_a_damaged_graph_is_one_line(bundle_copy: Path) -> None:
    file = bundle_copy / "onnx" / "model.onnx"
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(GateError, match="was altered") as caught:
        Encoder.load(bundle_copy)
    assert "\n" not in str(caught.value) and str(file) in str(caught.value)
    with pytest.raises(UserError, match="can't load") as caught:
        Encoder(file, Tokenizer.load(bundle_copy))
    assert "\n" not in str(caught.value) and str(file) in str(caught.value)


def test_the_variant_int8_is_the_static_one(tiny_bundle: Path) -> None:
    encoder = Encoder.load(tiny_bundle, "int8", threads=1)
    assert (encoder.variant, encoder.dim, encoder.max_seq_length) == ("int8-static", 32, 64)
    assert (encoder.threads, encoder.provider, encoder.graph.name) == (1, "cpu", "model_int8.onnx")


# ----------------------------------------------------------------- graphs that ask for other inputs


def _graph(file: Path, inputs: tuple[str, ...], output: str = "sentence_embedding") -> Path:
    """``vector = sum over tokens of (ids * mask + sum of the other inputs)``, as four equal channels."""
    nodes = [helper.make_node("Mul", ["input_ids", "attention_mask"], ["t0"])]
    others = [name for name in inputs if name not in ("input_ids", "attention_mask")]
    nodes += [helper.make_node("Add", [f"t{i}", name], [f"t{i + 1}"]) for i, name in enumerate(others)]
    nodes += [helper.make_node("Cast", [f"t{len(others)}"], ["f"], to=TensorProto.FLOAT),
              helper.make_node("ReduceSum", ["f", "axis"], ["sum"], keepdims=1),
              helper.make_node("Expand", ["sum", "width"], [output])]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(name, TensorProto.INT64, ["b", "s"]) for name in inputs],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["b", 4])],
        [numpy_helper.from_array(np.array([1]), "axis"), numpy_helper.from_array(np.array([1, 4]), "width")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), str(file))
    return file


@pytest.fixture(scope="module")
def tokenizer(tiny_bundle: Path) -> Tokenizer:
    return Tokenizer.load(tiny_bundle)


def test_only_what_the_graph_asks_for_is_fed(tmp_path: Path, tokenizer: Tokenizer) -> None:
    without = Encoder(_graph(tmp_path / "a.onnx", ("input_ids", "attention_mask")), tokenizer)
    assert list(without.feed([[1, 2]])) == ["input_ids", "attention_mask"]
    typed = Encoder(_graph(tmp_path / "b.onnx", ("input_ids", "attention_mask", "token_type_ids")), tokenizer)
    feed = typed.feed([[5, 6, 7], [8]])
    assert {name: array.tolist() for name, array in feed.items()} == {
        "input_ids": [[5, 6, 7], [8, tokenizer.pad_token_id, tokenizer.pad_token_id]],
        "attention_mask": [[1, 1, 1], [1, 0, 0]], "token_type_ids": [[0, 0, 0], [0, 0, 0]]}
    assert {array.dtype for array in feed.values()} == {np.dtype(np.int64)}
    for encoder in (without, typed):
        assert encoder.encode_ids([[5, 6, 7], [8]]).tolist() == [[18.0] * 4, [8.0] * 4]


def test_a_graph_that_asks_for_more_is_refused_by_name(tmp_path: Path, tokenizer: Tokenizer) -> None:
    file = _graph(tmp_path / "a.onnx", ("input_ids", "attention_mask", "position_ids"))
    with pytest.raises(UserError, match=r"position_ids.*known: input_ids, attention_mask, token_type_ids"):
        Encoder(file, tokenizer).encode(["a"])


def test_a_graph_without_the_pooled_output_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    file = _graph(tmp_path / "a.onnx", ("input_ids", "attention_mask"), output="last_hidden_state")
    with pytest.raises(UserError, match=r"no output 'sentence_embedding'.*last_hidden_state"):
        Encoder(file, tokenizer)


def test_shapes_baked_into_a_graph_are_one_line(tmp_path: Path, tokenizer: Tokenizer) -> None:
    file = _graph(tmp_path / "a.onnx", ("input_ids", "attention_mask"))
    model = onnx.load(str(file))
    for item in model.graph.input:
        item.type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(model, str(file))
    encoder = Encoder(file, tokenizer, threads=1)
    assert encoder.embed_batch([[5]]).shape == (1, 4)
    for call in (encoder.encode_ids, encoder.embed_batch):
        with pytest.raises(DistilfaceError, match=r"a\.onnx") as caught:
            call([[5], [6]])
        assert "\n" not in str(caught.value)


# ----------------------------------------------------------------- threads, processes, paths


@pytest.mark.parametrize("variant", ["fp32", "int8-static"])
def test_four_threads_at_once(tiny_bundle: Path, variant: str) -> None:
    encoder = Encoder.load(tiny_bundle, variant, threads=2)
    expected = encoder.encode(MIXED)
    with ThreadPoolExecutor(4) as pool:
        results: list[NDArray[np.float32]] = list(pool.map(lambda _: encoder.encode(MIXED), range(16)))
    for found in results:
        np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity masks")
def test_one_allowed_processor_without_torch(tiny_bundle: Path) -> None:
    """A container with fewer processors: one thread, no complaint on stderr; and torch is never imported."""
    code = f"""if True:
        import os, sys
        os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})
        from distilface import Encoder
        for variant in {VARIANTS!r}:
            encoder = Encoder.load({str(tiny_bundle)!r}, variant)
            assert encoder.threads == 1, encoder.threads
            assert encoder.encode(["Hello, World!"] * 100).shape == (100, 32)
        heavy = {{"torch", "transformers", "onnx", "scipy"}} & set(sys.modules)
        assert not heavy, heavy"""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")


def test_a_path_with_blanks_and_letters_of_the_world(tiny_bundle: Path, tmp_path: Path, encoder: Encoder) -> None:
    folder = shutil.copytree(tiny_bundle, tmp_path / "mein Ordner" / "日本 é")
    np.testing.assert_array_equal(Encoder.load(folder).encode(["light"]), encoder.encode(["light"]))


def test_a_graph_deleted_while_it_is_open_goes_on(bundle_copy: Path, encoder: Encoder) -> None:
    mapped = Encoder.load(bundle_copy)
    shutil.rmtree(bundle_copy)
    np.testing.assert_array_equal(mapped.encode(["light"]), encoder.encode(["light"]))


def test_a_graph_copied_alone_loads(tiny_bundle: Path, tmp_path: Path, tokenizer: Tokenizer, encoder: Encoder) -> None:
    for name in Bundle.open(tiny_bundle).variant_names:
        file = shutil.copy(Bundle.open(tiny_bundle).graph(name), tmp_path / f"{name}.onnx")
        assert np.isfinite(Encoder(file, tokenizer).encode(["light"])).all()


def test_golden_vectors_of_the_bundle_are_torchs(tiny_bundle: Path, checkpoint: Path) -> None:
    from distilface.encoder import SentenceEncoder

    golden = json.loads((tiny_bundle / "golden.json").read_text(encoding="utf-8"))["texts"]
    found = SentenceEncoder.load(checkpoint).encode([item["text"] for item in golden])
    np.testing.assert_allclose(found, [item["vector"] for item in golden], atol=1e-5)


def test_a_graph_replaced_after_loading_is_never_mixed_in(bundle_copy: Path) -> None:
    encoder = Encoder.load(bundle_copy, "fp32", threads=2)
    encoder.encode(MIXED[:1])
    graph = bundle_copy / "onnx" / "model.onnx"
    graph.write_bytes((bundle_copy / "onnx" / "model_int8.onnx").read_bytes())
    with pytest.raises(UserError, match="replaced after it was loaded"):
        encoder.encode(MIXED, batch_tokens=16)


# ----------------------------------------------------------------- forks, pickles, many threads


def test_eight_threads_that_begin_at_once(tiny_bundle: Path) -> None:
    """Texts of many batches and of one, on an encoder whose one-thread session is not open yet."""
    encoder = Encoder.load(tiny_bundle, threads=2)
    expected = Encoder.load(tiny_bundle, threads=1).encode(MIXED)
    start = threading.Barrier(8)

    def work(number: int) -> NDArray[np.float32]:
        start.wait()
        return np.concatenate([encoder.encode(MIXED if number % 2 else MIXED[:7], batch_tokens=64) for _ in range(4)])

    with ThreadPoolExecutor(8) as pool:
        for number, found in enumerate(pool.map(work, range(8))):
            np.testing.assert_allclose(found, np.tile(expected if number % 2 else expected[:7], (4, 1)), atol=1e-5)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_encodes_and_ends(tiny_bundle: Path) -> None:
    """Sessions do not survive a fork: running one may hang, and so does its destructor. A thread holds the lock."""
    code = f"""if True:
        import os
        import numpy as np
        from distilface import Encoder
        encoder = Encoder.load({str(tiny_bundle)!r}, threads=2)
        texts = ["turn on the light", "play music", "a"] * 20
        expected = encoder.encode(texts, batch_tokens=32)
        encoder._lock.acquire()
        child = os.fork()
        if child == 0:
            for tokens in (32, 100_000):
                assert np.allclose(encoder.encode(texts, batch_tokens=tokens), expected, atol=1e-5)
            del encoder
            os._exit(0)
        encoder._lock.release()
        assert os.waitpid(child, 0)[1] == 0
        assert np.allclose(encoder.encode(texts), expected, atol=1e-5)"""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2]), "TOKENIZERS_PARALLELISM": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False,
                          timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_whose_graph_was_replaced_is_told(bundle_copy: Path) -> None:
    encoder = Encoder.load(bundle_copy, threads=1)
    (bundle_copy / "onnx" / "model.onnx").write_bytes(b"other")
    child = os.fork()
    if child == 0:
        try:
            encoder.encode(["a"])
        except UserError as error:
            os._exit(7 if "was replaced after it was loaded" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_pickled_encoder_opens_its_graph_again(tiny_bundle: Path) -> None:
    encoder = Encoder.load(tiny_bundle, "int8", threads=1, special_tokens="escape", max_seq_length=9)
    found = pickle.loads(pickle.dumps(encoder))
    assert (found.variant, found.threads, found.max_seq_length, found.backend) == ("int8-static", 1, 9, "onnxruntime")
    np.testing.assert_array_equal(found.encode(["[SEP]", LONG]), encoder.encode(["[SEP]", LONG]))


def test_a_pickle_whose_graph_is_another_or_gone(bundle_copy: Path) -> None:
    pickled = pickle.dumps(Encoder.load(bundle_copy, threads=1))
    graph = bundle_copy / "onnx" / "model.onnx"
    graph.write_bytes((bundle_copy / "onnx" / "model_int8.onnx").read_bytes())
    with pytest.raises(UserError, match="not the one that the encoder was pickled with"):
        pickle.loads(pickled)
    graph.unlink()
    with pytest.raises(UserError, match="not on this machine"):
        pickle.loads(pickled)


# ----------------------------------------------------------------- smaller vectors, similarity, search


def test_precisions_and_widths(encoder: Encoder) -> None:
    vectors = encoder.encode(MIXED)
    cut = encoder.encode(MIXED, truncate_dim=12)
    np.testing.assert_allclose(cut, vectors[:, :12] / np.linalg.norm(vectors[:, :12], axis=1, keepdims=True), atol=1e-6)
    scales = encoder.fit_scales(MIXED, truncate_dim=12)
    int8 = encoder.encode(MIXED, truncate_dim=12, precision="int8", scales=scales)
    assert (int8.dtype, int8.shape) == (np.int8, (28, 12))
    assert cosines(scales.decode(int8), cut).min() > 0.999
    bits = encoder.encode(MIXED, precision="binary")
    assert (bits.dtype, bits.shape) == (np.uint8, (28, 4))
    np.testing.assert_array_equal(np.unpackbits(bits, axis=1), vectors > 0)
    assert encoder.encode([], precision="binary").shape == (0, 4)


def test_similarity_and_search_of_texts_and_of_vectors(encoder: Encoder) -> None:
    texts = MIXED[:7]
    vectors = encoder.encode(texts)
    np.testing.assert_allclose(encoder.similarity(texts, vectors), vectors @ vectors.T, atol=1e-6)
    hits = encoder.search(texts[2:4], vectors, 2)
    assert hits.indices[:, 0].tolist() == [2, 3]
    np.testing.assert_allclose(hits.scores[:, 0], 1, atol=1e-6)
    with pytest.raises(TypeError, match="bare string"):
        encoder.search("light", vectors)
    with pytest.raises(UserError, match=r"got shape|queries must be float vectors"):
        encoder.search(vectors[0], vectors)


# ----------------------------------------------------------------- backends


@pytest.mark.parametrize(("name", "provider", "installed", "machine", "expected", "reason"), [
    ("int8-static", "cpu", True, "x86_64", "openvino", "faster one for int8-static"),
    ("int8-static", "cpu", True, "AMD64", "openvino", "x86-64"),
    ("int8-static", "cpu", True, "aarch64", "onnxruntime", "this is aarch64"),
    ("int8-static", "cpu", False, "x86_64", "onnxruntime", "not installed"),
    ("int8-static", "cuda", True, "x86_64", "onnxruntime", "cuda was asked for"),
    ("fp32", "cpu", True, "x86_64", "onnxruntime", "fp32 is float32"),
    ("int8-dynamic", "cpu", True, "x86_64", "onnxruntime", "is int8-dynamic"),
    ("w4", "cpu", True, "x86_64", "onnxruntime", "for int8-static alone, and w4 is weight-only"),
])
def test_auto_says_why(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch, name: str, provider: str, installed: bool,
                       machine: str, expected: str, reason: str) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: object() if installed else None)
    variants = Bundle.open(tiny_bundle).manifest.variants
    weight_only = variants["fp32"].model_copy(update={"kind": "weight-only", "needs_custom_ops": True})
    found, why = choose_backend("auto", name, variants.get(name, weight_only), provider)
    assert found == expected
    assert reason in why


def test_auto_is_logged_and_kept(tiny_bundle: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "distilface.runtime"):
        encoder = Encoder.load(tiny_bundle, backend="auto", threads=1)
    assert (encoder.backend, "float32" in encoder.backend_reason) == ("onnxruntime", True)
    assert caplog.records[0].getMessage() == f"fp32: backend onnxruntime: {encoder.backend_reason}"


@pytest.mark.skipif(importlib.util.find_spec("openvino") is not None, reason="OpenVINO is installed")
def test_openvino_that_is_not_installed_is_one_line(tiny_bundle: Path) -> None:
    with pytest.raises(UserError, match=r"pip install 'distilface\[openvino\]'"):
        Encoder.load(tiny_bundle, backend="openvino")
