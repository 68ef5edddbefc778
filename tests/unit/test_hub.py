"""push and pull against a Hub that is a folder: the commit is recorded, hashes are checked, nothing is half there."""

from __future__ import annotations

import inspect
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from distilface.artifact import Bundle
from distilface.cli import run
from distilface.errors import GateError, UserError
from distilface.hub import pull, push
from distilface.runtime import Encoder
from distilface.verification import verify

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FolderHub:
    """The calls that are used, on ``root/OWNER/NAME``, with one commit."""

    root: Path
    asked: list[tuple[str, dict[str, Any]]]

    def create_repo(self, repo: str, **options: Any) -> None:
        self.asked.append(("create_repo", {"repo": repo, **options}))
        (self.root / repo).mkdir(parents=True, exist_ok=True)

    def create_branch(self, repo: str, **options: Any) -> None:
        self.asked.append(("create_branch", {"repo": repo, **options}))

    def upload_folder(self, **options: Any) -> Any:
        self.asked.append(("upload_folder", options))
        target = self.root / options["repo_id"]
        shutil.rmtree(target)
        for name in options["allow_patterns"]:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(Path(options["folder_path"]) / name, target / name)
        (target / ".gitattributes").write_text("*.onnx filter=lfs", encoding="utf-8")
        return SimpleNamespace(oid=COMMIT)

    def model_info(self, repo: str, revision: str | None = None) -> Any:
        if not (self.root / repo).is_dir() or revision not in (None, "main", "v1", COMMIT):
            raise OSError(f"404 Client Error.\n\n{repo} or revision {revision} not found")
        return SimpleNamespace(sha=COMMIT)

    def snapshot_download(self, repo: str, revision: str, local_dir: str) -> None:
        assert revision == COMMIT, "the files must be those of the commit that was looked up"
        shutil.copytree(self.root / repo, local_dir, dirs_exist_ok=True)
        (Path(local_dir) / ".cache" / "huggingface").mkdir(parents=True)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderHub:
    pytest.importorskip("huggingface_hub")
    FolderHub.root, FolderHub.asked = tmp_path / "hub", []
    monkeypatch.setattr("huggingface_hub.HfApi", FolderHub)
    monkeypatch.setattr("socket.getaddrinfo", lambda *_: [])
    return FolderHub()


def test_there_and_back(hub: FolderHub, tiny_bundle: Path, tmp_path: Path) -> None:
    assert push(tiny_bundle, "me/tiny", message="first") == f"me/tiny@{COMMIT}"
    names = [name for name, _ in hub.asked]
    assert names == ["create_repo", "upload_folder"]
    assert hub.asked[0][1] == {"repo": "me/tiny", "private": True, "exist_ok": True}
    assert hub.asked[1][1]["delete_patterns"] == "*" and hub.asked[1][1]["commit_message"] == "first"
    pulled = pull("me/tiny@v1", tmp_path / "pulled")
    assert pulled.manifest.origin == f"me/tiny@{COMMIT}"
    assert pulled.manifest.files == Bundle.open(tiny_bundle).manifest.files
    assert all(check.passed for check in verify(tmp_path / "pulled", "fp32"))  # no stray file, all hashes
    assert (Encoder.load(tmp_path / "pulled", threads=1).encode(["a"]) ==
            Encoder.load(tiny_bundle, threads=1).encode(["a"])).all()


def test_the_calls_fit_the_genuine_client(hub: FolderHub, tiny_bundle: Path, tmp_path: Path,
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder above must not accept what the real one refuses."""
    from huggingface_hub.hf_api import HfApi as genuine

    def checking(name: str) -> Any:
        signature, call = inspect.signature(getattr(genuine, name)), getattr(FolderHub, name)

        def checked(self: FolderHub, *arguments: Any, **options: Any) -> Any:
            signature.bind(self, *arguments, **options)
            return call(self, *arguments, **options)

        return checked

    for name in ("create_repo", "create_branch", "upload_folder", "model_info", "snapshot_download"):
        monkeypatch.setattr(FolderHub, name, checking(name))
    push(tiny_bundle, "me/tiny", branch="draft")
    pull("me/tiny", tmp_path / "pulled")


def test_a_branch_is_made_and_what_is_not_in_the_manifest_stays_here(hub: FolderHub, bundle_copy: Path) -> None:
    (bundle_copy / "notes.txt").write_text("private", encoding="utf-8")
    push(bundle_copy, "me/tiny", branch="draft", private=False)
    assert hub.asked[1] == ("create_branch", {"repo": "me/tiny", "branch": "draft", "exist_ok": True})
    assert not (hub.root / "me" / "tiny" / "notes.txt").exists()


def test_an_altered_file_is_not_pushed(hub: FolderHub, bundle_copy: Path) -> None:
    (bundle_copy / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(GateError, match=r"config\.json.*was altered"):
        push(bundle_copy, "me/tiny")
    assert hub.asked == []


@pytest.mark.parametrize(("name", "expected"), [("golden.json", "was altered"), ("vocab.txt", "is missing")])
def test_an_altered_download_leaves_nothing(hub: FolderHub, tiny_bundle: Path, tmp_path: Path, name: str,
                                            expected: str) -> None:
    push(tiny_bundle, "me/tiny")
    file = hub.root / "me" / "tiny" / name
    if expected == "is missing":
        file.unlink()
    else:
        file.write_text("{}", encoding="utf-8")
    with pytest.raises(GateError, match=expected):
        pull("me/tiny", tmp_path / "pulled")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hub"]


def test_a_repository_that_holds_no_bundle(hub: FolderHub, tmp_path: Path) -> None:
    (hub.root / "me" / "other").mkdir(parents=True)
    with pytest.raises(UserError, match="no bundle"):
        pull("me/other", tmp_path / "pulled")
    assert not (tmp_path / "pulled").exists()


@pytest.mark.parametrize(("words", "expected"), [
    (["pull", "me/none", "OUT"], "pulling 'me/none' failed (404 Client Error.)"),
    (["pull", "me/none@v9", "OUT"], "pulling 'me/none@v9' failed"),
    (["pull", "me/none@", "OUT"], "names no revision after the @"),
    (["pull", "none", "OUT"], "'none' is no repository of the Hub; write OWNER/NAME"),
    (["pull", "me/none", "BUNDLE"], "not empty"),
    (["push", "nowhere", "me/tiny"], "'nowhere' does not exist"),
    (["push", "BUNDLE", "https://x/me"], "write OWNER/NAME"),
])
@pytest.mark.usefixtures("hub")
def test_mistakes_are_one_line(words: list[str], expected: str, tiny_bundle: Path, tmp_path: Path,
                               monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert run([str(tiny_bundle) if word == "BUNDLE" else word for word in words]) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("distilface: error: ")]
    assert len(errors) == 1 and expected in errors[0]
    assert not (tmp_path / "OUT").exists()


@pytest.mark.parametrize("verb", ["push", "pull"])
def test_without_a_network_it_is_one_line(verb: str, tiny_bundle: Path, tmp_path: Path,
                                          monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The genuine client: a host name that does not resolve must not be waited for."""
    pytest.importorskip("huggingface_hub")

    def unresolved(*_: object, **__: object) -> None:
        raise OSError(-2, "Name or service not known")

    monkeypatch.setattr("socket.getaddrinfo", unresolved)
    monkeypatch.setattr("urllib.request.getproxies", dict)
    out = tmp_path / "out"
    assert run(["push", str(tiny_bundle), "me/tiny"] if verb == "push" else ["pull", "me/tiny", str(out)]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert f"{verb}ing" in error and "'me/tiny' failed (the Hub can't be reached, or HF_HUB_OFFLINE is set)" in error
    assert not out.exists()
