"""The verbs that use a bundle or pass it on: each parses, calls one function of the library, and prints."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Optional

import typer

from distilface.cli.options import File, Number, Overwrite, Text
from distilface.cli.progress import out as console
from distilface.cli.progress import progress
from distilface.errors import UserError

_FILES = (".npy", ".jsonl", ".parquet")


def encode(
    bundle: Annotated[Path, typer.Argument(help="Bundle.")],
    sources: Annotated[list[str], typer.Argument(
        help="Files of texts (text, TSV, CSV, JSONL, Parquet, .gz), or - for stdin.")],
    out: Annotated[str, typer.Option("--out", "-o", help="FILE.npy, .jsonl, .parquet; FOLDER/ for resumable shards; "
                                                         "- for JSONL on stdout.")] = "-",
    variant: Annotated[Text, typer.Option("--variant", help="fp32 (default), int8, int8-static, w4, ...")] = None,
    backend: Annotated[str, typer.Option("--backend", help="onnxruntime, openvino or auto.")] = "onnxruntime",
    column: Annotated[Text, typer.Option("--column", help="Column that holds the text.")] = None,
    id_column: Annotated[Text, typer.Option("--id-column", help="Shards: a column to keep beside the text.")] = None,
    header: Annotated[Optional[bool], typer.Option(  # noqa: UP045
        "--header/--no-header", help="TSV, CSV: without one, columns are positions from 1.")] = None,
    format: Annotated[Text, typer.Option("--format", help="npy, jsonl or parquet; default by suffix.")] = None,
    precision: Annotated[str, typer.Option("--precision", help="float32, int8 or binary vectors.")] = "float32",
    scales: Annotated[File, typer.Option("--scales", help="int8: ranges to use; default, the first texts'.")] = None,
    truncate_dim: Annotated[Number, typer.Option("--truncate-dim", help="Cut vectors (Matryoshka models).")] = None,
    threads: Annotated[Number, typer.Option("--threads", help="Default: what this process may use.")] = None,
    batch_tokens: Annotated[int, typer.Option("--batch-tokens", help="Padded tokens in one batch.")] = 512,
    provider: Annotated[str, typer.Option("--provider", help="cpu, cuda or tensorrt; never replaced.")] = "cpu",
    special_tokens: Annotated[str, typer.Option("--special-tokens", help="parse, or escape [SEP] in texts.")] = "parse",
    shard_rows: Annotated[Number, typer.Option("--shard-rows", help="Shards: rows in each; default 50000.")] = None,
    engine: Annotated[str, typer.Option("--engine", help="Shards: local, or ray for a Ray cluster.")] = "local",
    actors: Annotated[Number, typer.Option("--actors", help="Ray: how many; default, what the CPUs allow.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Encode texts to vectors: .npy, JSON lines or Parquet.

    Into one file, or into a folder of shards, where a run that was stopped goes on when it is started again.
    """
    from distilface.data import iter_texts
    from distilface.encoding import encode_folder, encode_to
    from distilface.encoding.folder import SHARD_ROWS
    from distilface.precision import Scales
    from distilface.runtime import Encoder

    folder = _is_folder(out, sources)
    given = {"--id-column": id_column, "--shard-rows": shard_rows, "--actors": actors,
             "--engine": None if engine == "local" else engine}
    if not folder and any(value is not None for value in given.values()):
        flag = next(name for name, value in given.items() if value is not None)
        raise UserError(f"{flag} belongs to a folder of shards; give --out FOLDER/")
    if engine == "ray" and threads is None:
        threads = 1  # of each actor
    encoder = Encoder.load(bundle, variant, threads, provider, special_tokens, backend=backend)  # type: ignore[arg-type]
    ranges = Scales.load(scales) if scales is not None else None
    with progress() as report:
        if folder:
            result = encode_folder(
                encoder, sources, out, column=column, id_column=id_column, header=header, format=format or "parquet",  # type: ignore[arg-type]
                precision=precision, truncate_dim=truncate_dim, scales=ranges,  # type: ignore[arg-type]
                shard_rows=SHARD_ROWS if shard_rows is None else shard_rows, batch_tokens=batch_tokens,
                overwrite=overwrite, progress=report, engine=engine, actors=actors)  # type: ignore[arg-type]
        else:
            count = encode_to(encoder, iter_texts(sources[0], column, header=header), out, format, overwrite,
                              batch_tokens, lambda done: report("encoding", done, done), sources[0],
                              precision=precision, truncate_dim=truncate_dim, scales=ranges)  # type: ignore[arg-type]
    dim = truncate_dim or encoder.dim
    if folder:
        console.print(f"{out}: {result.rows} vectors of {dim} dimensions in {result.shards} shards, "
                      f"{result.encoded} of them made now")
    elif out != "-":
        console.print(f"{out}: {count} vectors of {dim} dimensions")


def _is_folder(out: str, sources: list[str]) -> bool:
    """A path that ends with a slash or is a folder; several inputs must go into one."""
    path = Path(out)
    if out != "-" and (out.endswith(("/", os.sep)) or path.is_dir()):
        return True
    if len(sources) == 1:
        return False
    if out == "-" or path.suffix.lower() in _FILES:
        raise UserError(f"{len(sources)} inputs go into a folder of shards, and --out is {out!r}; use --out FOLDER/")
    return True


def push(
    bundle: Annotated[Path, typer.Argument(help="Bundle to upload.")],
    repo: Annotated[str, typer.Argument(help="OWNER/NAME on the Hugging Face Hub; made when it is not there.")],
    branch: Annotated[str, typer.Option("--branch", help="Branch to commit to.")] = "main",
    message: Annotated[str, typer.Option("--message", help="Commit message.")] = "Upload distilface bundle",
    public: Annotated[bool, typer.Option("--public", help="Make a new repository public; default private.")] = False,
) -> None:
    """Upload a bundle to the Hub: one commit.

    Every file is compared with the manifest first. Log in with: hf auth login, or set HF_TOKEN.
    """
    from distilface.hub import push as run

    with progress() as report:
        report("uploading")
        pushed = run(bundle, repo, branch, message, private=not public)
    console.print(f"pushed: distilface pull {pushed} OUT")


def pull(
    repo: Annotated[str, typer.Argument(help="OWNER/NAME, or OWNER/NAME@REVISION (branch, tag or commit).")],
    out: Annotated[Path, typer.Argument(help="Bundle folder to write.")],
    overwrite: Overwrite = False,
) -> None:
    """Download a bundle from the Hub.

    The commit is recorded in the manifest, and every file compared with it.
    """
    from distilface.hub import pull as run

    with progress() as report:
        report("downloading")
        bundle = run(repo, out, overwrite)
    console.print(f"{bundle.folder}: {bundle.manifest.origin}, variants {', '.join(bundle.variant_names)}")
