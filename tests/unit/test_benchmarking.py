"""The arithmetic of a benchmark run, its texts, its subjects and its report, without starting a process."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from distilface.benchmarking import BenchConfig, Subject, find_subjects, quality, summary
from distilface.benchmarking.assemble import Plan, Samples, assemble
from distilface.benchmarking.energy import EnergyMeter
from distilface.benchmarking.kept import Kept
from distilface.benchmarking.quality import retrieval_result
from distilface.benchmarking.results import SCHEMA_VERSION, BenchReport
from distilface.benchmarking.run import Run
from distilface.benchmarking.subjects import StaticFacts, check_target, deflated_size, static_facts, with_unique_names
from distilface.benchmarking.texts import RealTexts, length_grid, real_texts, texts_of_length, token_counter
from distilface.benchmarking.timing import _Rounds
from distilface.benchmarking.vectors import placement_notes
from distilface.errors import GateError, UserError
from distilface.report.markdown import to_markdown
from distilface.report.page import to_html
from tests.synthetic_report import report


def test_percentile_interpolates_between_neighbours() -> None:
    # Rank of q in n sorted samples is q/100 * (n - 1): 0.9 * 4 = 3.6 -> 40 + 0.6 * 10.
    samples = [50.0, 10.0, 30.0, 20.0, 40.0]
    assert summary.percentile(samples, 50) == 30
    assert summary.percentile(samples, 90) == pytest.approx(46)
    assert summary.percentile(samples, 99) == pytest.approx(49.6)


def test_latency_pools_the_rounds_and_keeps_their_medians() -> None:
    row = summary.latency(14, 13.5, [[0.001, 0.002, 0.009], [0.003, 0.004, 0.005]])
    assert row.p50 == pytest.approx(3.5)
    assert row.round_p50 == (2.0, 4.0)
    assert (row.samples, row.tokens, row.own_tokens) == (6, 14, 13.5)


def test_gain_is_the_median_of_the_rounds_ratios() -> None:
    # Baseline over ours, round by round: 2, 3, 4.
    found = summary.gain([1.0, 1.0, 2.0], [2.0, 3.0, 8.0], smaller_is_better=True)
    assert (found.median, found.low, found.high) == (3, 2, 4)
    # More is better: ours over baseline: 0.5, 1/3, 0.25.
    found = summary.gain([1.0, 1.0, 2.0], [2.0, 3.0, 8.0], smaller_is_better=False)
    assert (found.low, found.high) == (0.25, 0.5)
    assert found.median == pytest.approx(1 / 3, rel=1e-5)


def test_throughput_counts_texts_a_second() -> None:
    row = summary.throughput(None, 100, [0.1, 0.2, 0.4])
    assert row.rounds == (1000, 500, 250)
    assert row.sentences_per_second.median == 500


def test_ratio_of_unknown_is_unknown() -> None:
    assert summary.ratio(90.0, 22.5) == 4
    assert summary.ratio(None, 22.5) is None and summary.ratio(90.0, None) is None


def run_of(kind: str, seconds: float, dependence: float = 1.0) -> Samples:
    load = {"import_s": 0.1, "load_s": 0.2, "first_vector_s": 0.01, "dim": 2, "max_seq_length": 64}
    vectors = np.array([[1, 0], [0, 1]], dtype=np.float32)
    return Samples(StaticFacts(size_bytes=100), loads=[load], latency={14: [[seconds]], 64: [[seconds]]},
                   throughput={(None, None): [seconds]}, batch_dependence=dependence, vectors=vectors, peak_rss=1)


def assembled(seconds: float, dependence: float = 1.0) -> tuple[str, ...]:
    subjects = (Subject(name="b:fp32", model="b", folder=None, kind="float32"),
                Subject(name="b:int8-dynamic", model="b", folder=None, kind="int8-dynamic"))
    plan = Plan(subjects, "b:fp32", 14, 64, (14, 64), 2, [], [], [], BenchConfig())
    ours = run_of("int8-dynamic", seconds, dependence)
    ours.reference = "b:fp32"
    results, _ = assemble(plan, {"b:fp32": run_of("float32", 0.01), "b:int8-dynamic": ours}, lambda *_: None)
    assert results[1].cosine is not None and results[1].cosine.minimum == pytest.approx(1)
    return results[1].notes


def test_int8_that_is_not_faster_is_said() -> None:
    assert any("INT8 is not faster than fp32 on this CPU: 14 tokens at batch 1 0.50x" in n for n in assembled(0.02))
    assert not any("not faster" in note for note in assembled(0.005))


def test_batch_dependence_is_said() -> None:
    assert any("0.9850" in note for note in assembled(0.005, dependence=0.985))
    assert not any("batch-mates" in note for note in assembled(0.005))


def test_report_survives_json() -> None:
    original = report()
    assert BenchReport.from_json(original.to_json()) == original


@pytest.mark.parametrize(("change", "message"), [
    ({"schema_version": SCHEMA_VERSION + 1}, "reads up to 3: pip install --upgrade"),
    ({"schema_version": "1"}, "schema version '1'"),
    ({"schema_version": True}, "schema version True"),
    ({"kind": "other"}, "not a benchmark report"),
    ({"surprise": 1}, "damaged at surprise"),
    ({"threads": "many"}, "damaged at threads"),
])
def test_report_of_another_schema_is_refused(change: dict[str, object], message: str) -> None:
    values = json.loads(report().to_json()) | change
    with pytest.raises(UserError, match=r"my\.json") as caught:
        BenchReport.from_json(json.dumps(values), "my.json")
    assert message in str(caught.value)


def test_a_report_of_the_first_schema_is_still_read() -> None:
    """It knew neither retrieval nor threads nor energy nor sittings."""
    values = json.loads(report().to_json()) | {"schema_version": 1}
    del values["groups_source"], values["sittings"]
    for found in values["subjects"]:
        del found["retrieval"]
        for row in found["throughput"]:
            del row["threads"], row["joules"]
    old = BenchReport.from_json(json.dumps(values))
    assert old.schema_version == 1 and old.subjects == report().subjects


def test_retrieval_by_hand() -> None:
    """Two pictures on two axes: a1 and a2 alike, b1 near a1's side, b2 on its own axis."""
    texts = ["a1", "a2", "b1", "b2"]
    vectors = np.array([[1, 0], [0.99, 0.1], [0.8, 0.6], [0, 1]], dtype=np.float32)
    groups = [["a1", "a2"], ["b1", "b2"]]
    baseline = retrieval_result(vectors, texts, groups, None)
    # a1 -> a2, a2 -> a1, b2 -> b1 are right; b1 finds a2 (0.852) before b2 (0.6).
    assert (baseline.recall1, baseline.recall10, baseline.change1) == (75, 100, None)
    turned = vectors.copy()
    turned[2] = [0, 1]
    better = retrieval_result(turned, texts, groups, baseline)
    assert (better.recall1, better.change1, better.change10) == (100, 25, 0)


def _package(root: Path, name: str, joules: float, largest: int = 10_000_000) -> None:
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "energy_uj").write_text(str(int(joules * 1e6)))
    (folder / "max_energy_range_uj").write_text(str(largest))


def test_energy_of_all_packages_and_over_the_counters_end(tmp_path: Path) -> None:
    _package(tmp_path, "intel-rapl:0", 2.0)
    _package(tmp_path, "intel-rapl:1", 9.5)
    _package(tmp_path, "intel-rapl:0:0", 1.0)  # the cores of package 0, counted there
    meter = EnergyMeter(tmp_path)
    assert meter.readable
    meter.start()
    _package(tmp_path, "intel-rapl:0", 3.5)
    _package(tmp_path, "intel-rapl:1", 0.5)  # began anew at 10 J
    _package(tmp_path, "intel-rapl:0:0", 2.0)
    assert meter.joules() == pytest.approx(1.5 + 1.0, abs=1e-5)


def test_energy_is_absent_where_it_can_not_be_read(tmp_path: Path) -> None:
    meter = EnergyMeter(tmp_path / "absent")
    meter.start()
    assert not meter.readable and meter.joules() is None


@pytest.mark.parametrize(("values", "message"), [
    ({"last_groups": 5}, "groups is not set"), ({"thread_sweep": [2, 0]}, "thread_sweep holds 0")])
def test_settings_that_contradict_each_other(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        BenchConfig.model_validate(values)


@pytest.mark.parametrize("text", ["", "[]", "{", "nonsense"])
def test_what_is_no_report_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "old.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"report\.json"):
        BenchReport.read(file)
    with pytest.raises(UserError, match="can't be read"):
        BenchReport.read(tmp_path / "absent.json")


def test_report_is_frozen() -> None:
    with pytest.raises(ValidationError):
        report().threads = 3  # type: ignore[misc]


def test_length_grid_holds_short_and_long_and_obeys_the_limit() -> None:
    assert length_grid((8, 16, 32, 64, 128, 256), 256) == (14, 128, (8, 14, 16, 32, 64, 128, 256))
    assert length_grid((8, 16, 256), 64) == (14, 64, (8, 14, 16, 64))
    assert length_grid((8,), 10) == (10, 10, (8, 10))


def test_texts_have_exactly_the_length_asked_for() -> None:
    sentences = ["turn on the extraordinarily bright lamp", "what is the temperature outside"]
    # Long words count as three tokens, as a word-piece tokenizer would cut them.
    def count(texts: list[str]) -> list[int]:
        return [2 + sum(3 if len(word) > 8 else 1 for word in text.split()) for text in texts]

    for tokens in (4, 14, 128):
        texts = texts_of_length(tokens, sentences, count)
        assert count(texts) == [tokens] * len(texts)
        assert texts == texts_of_length(tokens, sentences, count)
    assert len(set(texts_of_length(14, sentences, count))) > 1


def test_tokens_are_words_where_there_is_no_tokenizer(tmp_path: Path) -> None:
    assert token_counter(None)(["a b c"]) == [5]
    assert token_counter(tmp_path)([""]) == [2]


def test_too_few_texts_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "few.txt"
    file.write_text("".join(f"sentence number {n}\n" for n in range(20)) + "sentence number 1\n", encoding="utf-8")
    assert len(real_texts(BenchConfig(texts=file)).sentences) == 20
    with pytest.raises(UserError, match="holds 20 distinct sentences and 30 are needed"):
        real_texts(BenchConfig(texts=file, text_count=30))
    file.write_text("only one\n", encoding="utf-8")
    with pytest.raises(UserError, match="holds 1 distinct sentences and 16 are needed"):
        real_texts(BenchConfig(texts=file))


def test_default_texts_are_the_built_in_ones_or_the_sts_sentences() -> None:
    assert real_texts(BenchConfig()).source == "built-in smart-home commands"
    assert len(real_texts(BenchConfig(text_count=50)).sentences) == 50
    assert real_texts(BenchConfig(), [f"text {n}" for n in range(40)]).source == "STS sentences"


@pytest.mark.parametrize("values", [{"lengths": (0,)}, {"lengths": (3,)}, {"batch_tokens": (-1,)}, {"rounds": 0},
                                    {"target": "tpu"}, {"thread": 2}])
def test_bad_settings_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        BenchConfig.model_validate(values)


def scored_file(folder: Path, rows: list[str]) -> Path:
    file = folder / "pairs.tsv"
    file.write_text("sentence1\tsentence2\tscore\n" + "".join(f"{row}\n" for row in rows), encoding="utf-8")
    return file


def test_sts_scores_equal_the_hand_computed_rank_correlation() -> None:
    gold = np.array([5.0, 5, 4, 4, 0])
    data = quality.StsData("toy", tuple("abcde"), tuple("vwxyz"), gold)
    cosines = np.array([0.9, 0.8, 0.8, 0.7, 0.1])
    worse = np.array([0.1, 0.8, 0.8, 0.7, 0.9])
    found = quality.sts_result("s", [data], [cosines], [worse], bootstrap=0, seed=0)
    assert found.average == pytest.approx(86.51809, abs=1e-4)  # scipy.stats.spearmanr gives 0.8651809
    assert (found.average_name, found.sets[0].pairs) == ("toy", 5)
    # Ranks of gold 4.5 4.5 2.5 2.5 1 and of worse 1 3.5 3.5 2 5: r = -6 / sqrt(9 * 9.5).
    assert found.change == pytest.approx(86.51809 + 100 * 6 / np.sqrt(85.5), abs=1e-3)


def test_constant_scores_are_undefined_and_fail() -> None:
    data = quality.StsData("toy", ("a", "b"), ("c", "d"), np.array([1.0, 2.0]))
    with pytest.raises(GateError, match="x:int8, STS set 'toy': Spearman is undefined"):
        quality.sts_result("x:int8", [data], [np.array([0.5, 0.5])], None, bootstrap=0, seed=0)


def test_pairs_of_one_score_are_refused_before_any_model_is_asked(tmp_path: Path) -> None:
    with pytest.raises(GateError, match="gives all 2 pairs the score 3: Spearman is undefined"):
        quality.load_sts_data(scored_file(tmp_path, ["a\tb\t3", "c\td\t3"]))


def test_one_pair_is_not_enough(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds 1 pair"):
        quality.load_sts_data(scored_file(tmp_path, ["a b\tc d\t3"]))
    with pytest.raises(UserError):
        quality.load_sts_data(scored_file(tmp_path, []))
    assert len(quality.load_sts_data(scored_file(tmp_path, ["a\tb\t3", "c\td\t1"]))[0].gold) == 2


def test_a_folder_without_sts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none of the STS sets|not a SentEval folder"):
        quality.load_sts_data(tmp_path)


def test_built_in_pairs_are_an_sts_set() -> None:
    (data,) = quality.load_sts_data(Path("smarthome"))
    assert data.name == "smarthome" and len(data.gold) > 100


def test_pair_cosines_find_their_rows() -> None:
    data = quality.StsData("toy", ("a", "b"), ("b", "c"), np.array([1.0, 2.0]))
    sentences = quality.distinct_sentences([data])
    assert sentences == ["a", "b", "c"]
    vectors = np.array([[1, 0], [0, 2], [3, 4]], dtype=np.float32)
    (found,) = quality.pair_cosines(vectors, sentences, [data])
    assert found == pytest.approx([0.0, 0.8])


def test_names_are_unique_or_refused() -> None:
    def one(model: str) -> Subject:
        return Subject(name="bundle:fp32", model=model, folder=None, variant="fp32")

    assert [s.name for s in with_unique_names([one("a/bundle"), one("b/bundle")])] == ["a/bundle:fp32", "b/bundle:fp32"]
    with pytest.raises(UserError, match="named twice"):
        with_unique_names([one("a/bundle"), one("a/bundle")])
    with pytest.raises(UserError, match="nothing to measure"):
        with_unique_names([])


def test_cuda_is_never_replaced() -> None:
    dynamic = Subject(name="b:int8-dynamic", model="b", folder=None, kind="int8-dynamic")
    fp32 = Subject(name="b:fp32", model="b", folder=None, kind="float32")
    with pytest.raises(UserError, match=r"dynamic INT8 has no GPU kernels.*b:fp32"):
        check_target([fp32, dynamic], "cuda")
    import onnxruntime

    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        with pytest.raises(UserError, match="--target cuda: this ONNX Runtime has no CUDA provider"):
            check_target([fp32], "cuda")
    check_target([dynamic], "cpu")
    engine = Subject(name="b:fp16@tensorrt", model="b", folder=None, kind="float16", backend="tensorrt")
    for target in ("cpu", "web"):
        with pytest.raises(UserError, match=f"b:fp16@tensorrt can't be measured on {target}.*--target cuda"):
            check_target([fp32, engine], target)


def test_each_provider_asked_for_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    fp32 = Subject(name="b:fp32", model="b", folder=None, kind="float32")
    engine = fp32.model_copy(update={"name": "b:fp32@tensorrt", "backend": "tensorrt"})
    present = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: present)
    check_target([fp32], "cuda")
    with pytest.raises(UserError, match="has no TensorRT provider"):
        check_target([fp32, engine], "cuda")
    present.insert(0, "TensorrtExecutionProvider")
    check_target([fp32, engine], "cuda")


def test_products_on_the_cpu_are_no_number_of_a_gpu() -> None:
    both = {"nodes": {"CUDAExecutionProvider": 90, "CPUExecutionProvider": 7}, "cpu_products": 0}
    assert placement_notes("b:fp32", both) == [
        "nodes of the graph run: 7 by CPUExecutionProvider, 90 by CUDAExecutionProvider"]
    assert placement_notes("torch", None) == []
    with pytest.raises(GateError, match="b:int8-static: 12 products of this graph have no GPU kernel"):
        placement_notes("b:int8-static", {**both, "cpu_products": 12})


class NotedCrew:
    """Answers at once and remembers who was asked what."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int | None, int]] = []

    def ask(self, subject: Subject, op: str, **fields: Any) -> dict[str, Any]:
        if op == "throughput":
            self.asked.append((subject.name, fields["batch_tokens"], len(fields["texts"])))
        return {"peak_rss": 7} if op == "memory" else {"seconds": 0.5}


def test_a_thread_sweep_changes_who_begins_and_has_every_batch_size(tmp_path: Path) -> None:
    subjects = [Subject(name=name, model=name, folder=None) for name in ("a", "b")]
    config = BenchConfig(rounds=2, batch_tokens=(64, 256), settle_seconds=0)
    samples = {name: Samples(StaticFacts()) for name in ("a", "b")}
    run = Run(subjects, config, 2, RealTexts("here", ("one", "two") * 10), Kept(tmp_path / "kept", {}), samples,
              lambda *_: None)
    crew = NotedCrew()
    _Rounds(run, crew, threads=1).take({})  # type: ignore[arg-type]
    # Before each timed pass a warm-up: all texts the first time, a tenth after that.
    assert crew.asked == [
        (name, batch, count) for warm, order in ((20, "ab"), (2, "ba")) for batch in (64, 256)
        for name in order for count in (warm, 20)]
    assert samples["a"].throughput == {(64, 1): [0.5, 0.5], (256, 1): [0.5, 0.5]} and samples["a"].peak_rss is None
    again = NotedCrew()
    _Rounds(run, again, threads=1).take({})  # type: ignore[arg-type]
    assert again.asked == []  # all of it was kept


def test_a_report_says_that_no_gpu_was_measured() -> None:
    row = "not measured here (distilface bench --target cuda on a machine with an NVIDIA GPU)"
    assert f"| GPU | {row} |" in to_markdown(report()) and row in to_html(report())
    assert "not measured here" not in to_markdown(report(target="cuda"))


def test_deflated_size_is_what_zip_makes(tmp_path: Path) -> None:
    file = tmp_path / "weights.bin"
    file.write_bytes(np.random.default_rng(0).integers(0, 9, 3_000_000, dtype=np.uint8).tobytes())
    with zipfile.ZipFile(tmp_path / "weights.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(file, "weights.bin")
        packed = archive.getinfo("weights.bin").compress_size
    assert abs(deflated_size(file) - packed) <= 0.001 * packed


def test_checkpoint_facts_come_from_the_file_header(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    values = {"weight": np.zeros((3, 4), dtype=np.float32), "ids": np.zeros(7, dtype=np.int64)}
    save_file(values, str(tmp_path / "model.safetensors"))
    facts = static_facts(Subject(name="c", model="c", folder=tmp_path, backend="torch"))
    assert facts.parameters == 12
    assert facts.size_bytes == (tmp_path / "model.safetensors").stat().st_size


def test_a_variant_of_a_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    assert [s.backend for s in find_subjects(tmp_path)] == ["torch"]
    with pytest.raises(UserError, match="is a checkpoint, not a bundle"):
        find_subjects(tmp_path, "int8")


def test_a_backend_of_a_subject(tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from distilface.benchmarking.subjects import check_target, with_unique_names
    from distilface.cli.measuring import _subjects

    monkeypatch.setattr("distilface.benchmarking.subjects.require", lambda *_: None)  # as if it were installed
    both = [*_subjects(f"{tiny_bundle}:int8"), *_subjects(f"{tiny_bundle}:int8@openvino")]
    assert [(item.name, item.variant, item.backend) for item in with_unique_names(both)] == [
        ("tiny:int8-static", "int8-static", "onnxruntime"), ("tiny:int8-static@openvino", "int8-static", "openvino")]
    assert _subjects(f"{tiny_bundle}@openvino")[0].name == "tiny:fp32@openvino"
    assert static_facts(both[1]).size_bytes == static_facts(both[0]).size_bytes
    with pytest.raises(UserError, match="OpenVINO runs on the CPU only"):
        check_target(both[1:], "cuda")
    with pytest.raises(UserError, match=r"'tensorflow'.*allowed: onnxruntime, openvino"):
        _subjects(f"{tiny_bundle}@tensorflow")
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match=r"'openvino' was asked of .* a checkpoint"):
        find_subjects(tmp_path, backend="openvino")
    odd = tmp_path / "a@b"
    odd.mkdir()
    (odd / "config.json").write_text("{}", encoding="utf-8")
    assert _subjects(str(odd))[0].backend == "torch"  # a path that exists is a path
