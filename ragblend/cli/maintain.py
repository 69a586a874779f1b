"""``ragblend info``, ``verify``, ``repair``, ``gc`` and ``remove``: looking after a library."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ragblend.cli import start
from ragblend.cli.options import (
    Debug,
    Device,
    Dtype,
    EncryptionKeyFile,
    Json,
    LibraryFolder,
    Model,
    Namespace,
    Remote,
)
from ragblend.cli.output import counted, emit, megabytes, stdout, table
from ragblend.cli.progress import Bar
from ragblend.cli.storage import store_settings, tell_remote
from ragblend.config import DEFAULT_NAMESPACE, require

if TYPE_CHECKING:
    from ragblend.config import StoreSettings
    from ragblend.library.library import Library
    from ragblend.library.report import StoreInfo


def info(
    library: LibraryFolder, namespace: Namespace = DEFAULT_NAMESPACE, json: Json = False, debug: Debug = False
) -> None:
    """Say what a library holds and what it was made with."""
    with _open_without_model(library, namespace, read_only=True) as opened:
        found = opened.info()
    if json:
        emit(found)
        return
    created = datetime.fromtimestamp(found.created_at).astimezone()
    rows = [
        ("library", found.path),
        ("namespace", found.namespace),
        ("documents", f"{found.documents:,}"),
        ("chunks", f"{found.chunks:,} of at most {found.chunk_tokens:,} tokens"),
        ("tokens", f"{found.tokens:,}"),
        ("texts", f"{found.texts:,} precomputed"),
        ("KV", f"{megabytes(found.kv_bytes)} as {found.store.codec}"),
        *([("of it unneeded", _unneeded(found.unneeded_bytes))] if found.unneeded_bytes else []),
        *_store_rows(found.store),
        ("model", found.model or "not indexed yet"),
        ("embedder", found.embedder or "not indexed yet"),
        ("created", f"{created:%Y-%m-%d %H:%M}"),
    ]
    stdout().print(table(["", ""], rows))


def _unneeded(nbytes: int) -> str:
    return f"{megabytes(nbytes)}: a run did not finish. Index again to use it, or delete it with `ragblend gc`"


def _store_rows(store: StoreInfo) -> list[tuple[str, str]]:
    """What there is to say of budgets and tiers; nothing where none is set."""
    rows = []
    if store.disk_budget:
        rows.append(("disk", f"{megabytes(store.disk_bytes)} of {megabytes(store.disk_budget)}"))
    if store.total_disk_budget:
        used = f"{megabytes(store.total_disk_bytes)} of {megabytes(store.total_disk_budget)}"
        rows.append(("disk, all namespaces", used))
    if store.free_space_floor:
        rows.append(("to stay free", megabytes(store.free_space_floor)))
    if store.ttl_s:
        rows.append(("expires", f"{store.ttl_s / 86_400:g} days after its last use"))
    if store.evicted:
        rows.append(("evicted", f"{counted(store.evicted, 'chunk')}: computed when needed"))
    if store.encrypted:
        rows.append(("encryption", "AES-256-GCM"))
    if store.remote:
        rows.append(("remote", f"{store.remote} ({store.pending:,} changes pending)"))
    return rows


def verify(
    library: LibraryFolder,
    namespace: Namespace = DEFAULT_NAMESPACE,
    sample: Annotated[
        int | None, typer.Option(min=1, help="Read only so many entries, chosen at random.", show_default=False)
    ] = None,
    audit: Annotated[int, typer.Option(min=0, help="Compute so many entries again with the model, and compare.")] = 0,
    encryption_key_file: EncryptionKeyFile = None,
    model: Model = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Read chunk KV and check it against its checksums; check catalogue and search index. Changes nothing."""
    store = store_settings(encryption_key_file=encryption_key_file)
    with (
        start.open_library(library, namespace, model, device, dtype, json=json, read_only=True, store=store)
        if audit
        else _open_without_model(library, namespace, store, read_only=True)
    ) as opened:
        report = opened.verify(sample=sample, audit=audit)
    if json:
        emit(report)
        return 0 if report.ok else 1
    rows = [
        ("entries", f"{report.entries:,} (chunks with the same text and context share one)"),
        ("checked", f"{report.checked:,}"),
        ("missing", f"{len(report.missing):,}"),
        ("damaged", f"{len(report.damaged):,}"),
        ("evicted", f"{report.evicted:,}"),
        ("audited", f"{report.audited:,}"),
        ("deviating", f"{len(report.deviating):,}"),
        ("orphans", f"{len(report.orphans):,}"),
        ("search index", "good" if report.index_ok else "BAD"),
    ]
    stdout().print(table(["", ""], rows))
    if report.deviating:
        stdout().print("run `ragblend repair --all` on this library and namespace", style="yellow")
    elif not report.ok:
        stdout().print("run `ragblend repair` on this library and namespace", style="yellow")
    elif report.orphans:
        stdout().print("run `ragblend gc` to free the orphans' space", style="yellow")
    return 0 if report.ok else 1


def repair(
    library: LibraryFolder,
    namespace: Namespace = DEFAULT_NAMESPACE,
    model: Model = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    everything: Annotated[bool, typer.Option("--all", help="Compute all of it again.")] = False,
    remote: Remote = None,
    encryption_key_file: EncryptionKeyFile = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Compute missing and damaged chunk KV again, and rebuild a bad search index.

    Evicted KV is computed as far as there is room.
    """
    store = store_settings(remote=remote, encryption_key_file=encryption_key_file)
    with start.open_library(library, namespace, model, device, dtype, json=json, store=store) as opened:
        report = opened.repair(Bar("repairing"), everything=everything)
        tell_remote(opened)
    if json:
        emit(report)
    else:
        index = "search index rebuilt" if report.index_rebuilt else "search index good"
        stdout().print(f"{counted(report.recomputed, 'chunk')} computed again ({report.tokens:,} tokens) · {index}")


def gc(
    library: LibraryFolder,
    namespace: Namespace = DEFAULT_NAMESPACE,
    remote: Remote = None,
    encryption_key_file: EncryptionKeyFile = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Delete what no chunk needs: leftovers of interrupted runs, quarantined and temporary files."""
    store = store_settings(remote=remote, encryption_key_file=encryption_key_file)
    with _open_without_model(library, namespace, store) as opened:
        report = opened.gc()
        tell_remote(opened)
    if json:
        emit(report)
    else:
        deleted = f"{counted(report.entries, 'entry', 'entries')} and {counted(report.files, 'file')} deleted"
        stdout().print(f"{deleted} · {megabytes(report.nbytes)}")


def remove(
    library: LibraryFolder,
    paths: Annotated[
        list[Path] | None, typer.Argument(help="Documents, or folders of documents.", show_default=False)
    ] = None,
    namespace: Namespace = DEFAULT_NAMESPACE,
    everything: Annotated[
        bool, typer.Option("--all", help="Erase the whole namespace, for which no key is needed.")
    ] = False,
    remote: Remote = None,
    encryption_key_file: EncryptionKeyFile = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Remove documents with their chunks and KV from a library.

    The files themselves are not touched: while one lies in its folder, indexing the folder adds it again.
    """
    require(bool(paths) != everything, "say which documents to remove, or --all to erase the namespace")
    store = store_settings(remote=remote, encryption_key_file=encryption_key_file)
    with _open_without_model(library, namespace, store) as opened:
        removed = opened.erase() if everything else opened.remove(paths or [])
        tell_remote(opened)
    if json:
        emit({"removed": removed})
    else:
        stdout().print(f"{removed:,} {'document' if removed == 1 else 'documents'} removed")


def _open_without_model(
    folder: Path, namespace: str, store: StoreSettings | None = None, *, read_only: bool = False
) -> Library:
    from ragblend.library.library import Library

    return Library.open(folder, namespace=namespace, create=False, read_only=read_only, store=store)
