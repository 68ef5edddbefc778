"""Bundles on the Hugging Face Hub, through huggingface_hub: up as one commit, down by the hash of a commit."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from distilface.artifact import MANIFEST, Bundle, atomic_directory, check_output, replace_manifest
from distilface.data.hub import fail_fast_offline
from distilface.errors import DistilfaceError, UserError, require

_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
Result = TypeVar("Result")


def push(bundle: str | Path, repo: str, branch: str = "main", message: str = "Upload distilface bundle",
         private: bool = True) -> str:
    """Upload ``bundle`` as one commit and return ``OWNER/NAME@COMMIT``.

    Files of the repository that are not in the bundle are deleted in the same commit, so that it holds this bundle and
    nothing else.

    Args:
        repo: ``OWNER/NAME``; made when it is not there.
        private: whether a repository that is made now is private.

    Raises:
        UserError: no bundle, a name that is none, not logged in, no connection, or refused by the Hub.
        GateError: a file of the bundle was altered.
    """
    opened = Bundle.open(bundle)
    _check_name(repo)
    opened.check_files()
    names = [MANIFEST, *opened.manifest.files]

    def upload(api: Any) -> str:
        api.create_repo(repo, private=private, exist_ok=True)
        if branch != "main":
            api.create_branch(repo, branch=branch, exist_ok=True)
        done = api.upload_folder(repo_id=repo, folder_path=str(opened.folder), revision=branch, commit_message=message,
                                 allow_patterns=names, delete_patterns="*")
        return str(done.oid)

    return f"{repo}@{_ask(upload, f'pushing to {repo!r}')}"


def pull(repo: str, out: str | Path, overwrite: bool = False) -> Bundle:
    """Download the bundle of ``OWNER/NAME`` or ``OWNER/NAME@REVISION`` into ``out``, checked, or nothing at all.

    A branch or tag is looked up first, and the files are those of that commit; ``origin`` of the manifest names it.

    Raises:
        UserError: no such repository or revision, no connection, or it holds no bundle.
        GateError: a file differs from the manifest.
    """
    name, _, revision = repo.partition("@")
    _check_name(name)
    if "@" in repo and not revision:
        raise UserError(f"{repo!r} names no revision after the @; give a branch, a tag or a commit, or drop the @")
    check_output(out, overwrite)
    commit = str(_ask(lambda api: api.model_info(name, revision=revision or None).sha, f"pulling {repo!r}"))
    with atomic_directory(out, overwrite) as folder:
        _ask(lambda api: api.snapshot_download(name, revision=commit, local_dir=str(folder)), f"pulling {repo!r}")
        for leaving in (".cache", ".gitattributes"):  # of the download, and of the Hub
            path = folder / leaving
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        pulled = Bundle.open(folder)
        pulled.check_files()
        manifest = pulled.manifest.model_copy(update={"origin": f"{name}@{commit}"})
        replace_manifest(folder, manifest)
    return Bundle.open(out)


def _check_name(repo: str) -> None:
    if not _REPO.fullmatch(repo):
        raise UserError(f"{repo!r} is no repository of the Hub; write OWNER/NAME")


def _ask(call: Callable[[Any], Result], purpose: str) -> Result:
    hub: Any = require("huggingface_hub", "hub", purpose)
    try:
        with fail_fast_offline():
            return call(hub.HfApi())
    except DistilfaceError:
        raise
    except Exception as error:  # no connection, no login, no such repository, no permission: one kind of answer
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[0][:160] if lines else type(error).__name__
        # The first is also what fail_fast_offline turns an unknown host into; the second is that of huggingface_hub 0.
        if type(error).__name__ in ("OfflineModeIsEnabled", "ConnectionError"):
            reason = "the Hub can't be reached, or HF_HUB_OFFLINE is set"
        raise UserError(f"{purpose} failed ({reason}); check the name, the connection and the login (hf auth login, or "
                        "HF_TOKEN)") from None
