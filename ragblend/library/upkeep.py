"""Checking a library against its catalogue, and putting it right."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from ragblend.library.indexing import prefill_into
from ragblend.library.progress import IndexProgress
from ragblend.library.protocol import LibraryEngine
from ragblend.library.records import Records
from ragblend.library.report import GarbageReport, RepairReport, VerifyReport
from ragblend.library.retrieval import Retriever
from ragblend.store.disk import DiskStore

_BATCH_ENTRIES = 32


def verify(records: Records, store: DiskStore, retriever: Retriever) -> VerifyReport:
    """Read every entry whole and compare store, index and catalogue. Changes nothing.

    Raises StoreError for a damaged catalogue: everything else can be repaired from it, it cannot.
    """
    records.catalogue.verify()
    entries = 0
    missing, damaged = [], []
    for key, _ in records.entries():
        entries += 1
        cause = _problem(store, key)
        if cause == "missing":
            missing.append(key)
        elif cause:
            damaged.append(key)
    strays = [path.name for path in (*store.orphans(), *store.quarantined())]
    orphans = (*_unneeded_entries(records, store), *strays)
    return VerifyReport(entries, tuple(missing), tuple(damaged), orphans, retriever.is_sound())


def repair(
    records: Records, store: DiskStore, retriever: Retriever, engine: LibraryEngine, progress: IndexProgress
) -> RepairReport:
    """Compute missing and damaged entries again, and rebuild the index if it is not sound."""
    broken = _broken(records, store)
    recomputed = tokens = 0
    progress.start(0)
    try:
        while batch := dict(islice(broken, _BATCH_ENTRIES)):
            for key in batch:
                store.delete(key)
            tokens += prefill_into(store, engine, batch, progress)
            recomputed += len(batch)
    finally:
        progress.finish()
    rebuilt = not retriever.is_sound()
    if rebuilt:
        retriever.rebuild()
    return RepairReport(recomputed, tokens, rebuilt)


def collect_garbage(records: Records, store: DiskStore, index_folder: Path) -> GarbageReport:
    """Delete entries that no chunk needs, files without a row, quarantined and half-written files."""
    unneeded = _unneeded_entries(records, store)
    for key in unneeded:
        store.delete(key)
    files = nbytes = 0
    for path in (*store.orphans(), *store.quarantined(), *index_folder.glob("*.tmp")):
        with contextlib.suppress(FileNotFoundError):
            size = path.lstat().st_size
            path.unlink()
            files += 1
            nbytes += size
    return GarbageReport(len(unneeded), files, nbytes + sum(unneeded.values()))


def _broken(records: Records, store: DiskStore) -> Iterator[tuple[str, tuple[int, ...]]]:
    return ((key, token_ids) for key, token_ids in records.entries() if _problem(store, key))


def _problem(store: DiskStore, key: str) -> str | None:
    return store.check(key) if store.contains(key) else "missing"


def _unneeded_entries(records: Records, store: DiskStore) -> dict[str, int]:
    """Recorded entries that no chunk needs, with their bytes."""
    sizes = {entry.key: entry.nbytes for entry in store.entries()}
    return {key: sizes[key] for key in records.unneeded(sizes)}
