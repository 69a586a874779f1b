"""``ragblend index``: documents into a library, with a progress bar and a report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ragblend.cli import start
from ragblend.cli.options import (
    Codec,
    Debug,
    Device,
    DiskBudget,
    Dtype,
    EncryptionKeyFile,
    Json,
    KeepFree,
    LibraryFolder,
    Model,
    Namespace,
    Remote,
    TimeToLive,
    TotalDiskBudget,
)
from ragblend.cli.output import counted, emit, megabytes, stdout, table
from ragblend.cli.progress import Bar
from ragblend.cli.storage import limits_from, store_settings, tell_remote
from ragblend.config import DEFAULT_NAMESPACE, ChunkSettings

if TYPE_CHECKING:
    from ragblend.library.report import IndexReport


def index(
    paths: Annotated[list[Path], typer.Argument(help="Files and folders.", show_default=False)],
    library: LibraryFolder,
    namespace: Namespace = DEFAULT_NAMESPACE,
    chunk_tokens: Annotated[
        int | None,
        typer.Option(help="Longest chunk, in the model's tokens (default: as before, at first 256)."),
    ] = None,
    codec: Codec = None,
    disk_budget: DiskBudget = None,
    total_disk_budget: TotalDiskBudget = None,
    keep_free: KeepFree = None,
    ttl_days: TimeToLive = None,
    remote: Remote = None,
    encryption_key_file: EncryptionKeyFile = None,
    model: Model = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Add documents and their KV to a library, which is made if it is not there.

    Documents that are there unchanged cost only reading them; those that are gone from an indexed
    folder are removed. The exit status is 1 if anything was skipped.
    """
    chunk = None if chunk_tokens is None else ChunkSettings(chunk_tokens)
    start.require_documents(paths, library)
    limits = limits_from(
        library,
        namespace,
        disk_budget=disk_budget,
        total_disk_budget=total_disk_budget,
        keep_free=keep_free,
        ttl_days=ttl_days,
    )
    store = store_settings(codec=codec, limits=limits, remote=remote, encryption_key_file=encryption_key_file)
    with start.open_library(
        library, namespace, model, device, dtype, json=json, create=True, chunk=chunk, store=store
    ) as opened:
        report = opened.add(paths, Bar("indexing"))
        tell_remote(opened)
    if json:
        emit(report)
    else:
        print_report(report)
    return 1 if report.skipped else 0


def print_report(report: IndexReport) -> None:
    """What was done to the documents, which were skipped and why, and what the library now holds."""
    out = stdout()
    counts = (report.indexed, report.unchanged, report.replaced, report.removed, len(report.skipped))
    columns = ("indexed", "unchanged", "replaced", "removed", "skipped")
    out.print(table(columns, [[f"{count:,}" for count in counts]]))
    if report.skipped:
        out.print(table(["skipped", "because"], [(skipped.path, skipped.reason) for skipped in report.skipped]))
    out.print(
        f"{counted(report.documents, 'document')} · {counted(report.chunks, 'chunk')} · {report.tokens:,} tokens · "
        f"{megabytes(report.kv_bytes)} of KV · {report.seconds:.1f} s",
        style="green",
        soft_wrap=True,
    )
