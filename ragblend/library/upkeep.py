"""Checking a library against its catalogue, and putting it right."""

from __future__ import annotations

import contextlib
import random
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path

from ragblend.library.audit import deviating_entries
from ragblend.library.indexing import prefill_into
from ragblend.library.progress import IndexProgress
from ragblend.library.protocol import LibraryEngine
from ragblend.library.records import Records
from ragblend.library.report import GarbageReport, RepairReport, VerifyReport
from ragblend.library.retrieval import Retriever
from ragblend.library.sections import as_prefilled
from ragblend.store.disk import DiskStore

_YOUNG_S = 60.0
_BATCH_ENTRIES = 32
_READERS = 2
_ENTRIES_AHEAD = 4

# An entry's key and token ids.
OwnedEntry = tuple[str, tuple[int, ...]]


def verify(
    records: Records,
    store: DiskStore,
    retriever: Retriever,
    *,
    sample: int | None = None,
    audit: int = 0,
    engine: LibraryEngine | None = None,
) -> VerifyReport:
    """Read entries whole and compare store, index and catalogue. Changes nothing.

    sample: read only so many, chosen at random. audit: compute so many of the sound ones again, by
    ``engine``, and compare. The catalogue is checked wholly. Raises StoreError if it is damaged:
    everything else can be repaired from it, it cannot.
    """
    records.catalogue.verify()
    missing: list[str] = []
    damaged: list[str] = []
    checked = evicted = 0
    given_up = store.evicted()

    def sound_entries() -> Iterator[OwnedEntry]:
        nonlocal checked, evicted
        needed = records.entries()
        for entry, problem in _checked(store, needed if sample is None else _at_random(needed, sample)):
            if problem and records.unneeded([entry[0]]):  # removed by another process meanwhile
                continue
            checked += 1
            if problem is None:
                yield entry
            elif problem == "missing" and entry[0] in given_up:
                evicted += 1
            else:
                (missing if problem == "missing" else damaged).append(entry[0])

    audited = _at_random(sound_entries(), audit)
    deviating: tuple[str, ...] = ()
    if engine and audited:
        deviating = tuple(deviating_entries(store, engine, as_prefilled(records, engine, store, dict(audited))))
    strays = [path.name for path in (*store.orphans(), *store.quarantined())]
    return VerifyReport(
        entries=records.entry_count(),
        checked=checked,
        missing=tuple(missing),
        damaged=tuple(damaged),
        evicted=evicted,
        audited=len(audited),
        deviating=deviating,
        orphans=(*records.unneeded_entries(), *strays),
        index_ok=retriever.is_sound(),
    )


def repair(
    records: Records,
    store: DiskStore,
    retriever: Retriever,
    engine: LibraryEngine,
    progress: IndexProgress,
    *,
    everything: bool = False,
) -> RepairReport:
    """Compute missing and damaged entries again (or all), and rebuild the index if it is not sound.

    Evicted ones are computed for which there is room without evicting others.

    Raises StoreError for a damaged catalogue.
    """
    records.catalogue.verify()
    broken = _broken(records, store, everything)
    recomputed = tokens = 0
    progress.start(0)
    at_once = _BATCH_ENTRIES if store.entries() else 1
    try:
        while batch := dict(islice(broken, at_once)):
            for key in batch:
                store.delete(key)
            tokens += prefill_into(store, engine, as_prefilled(records, engine, store, batch), progress)
            recomputed += len(batch)
            if at_once == 1 and store.entries():
                at_once = _BATCH_ENTRIES
    finally:
        progress.finish()
    rebuilt = not retriever.is_sound()
    if rebuilt:
        retriever.rebuild()
    return RepairReport(recomputed, tokens, rebuilt)


def collect_garbage(records: Records, store: DiskStore, prefixes: DiskStore, index_folder: Path) -> GarbageReport:
    """Delete entries that no chunk needs, files without a row, quarantined and half-written files.

    prefixes: the prefix cache's store, which other processes write to without the writer lock, so that its
    youngest files are left alone.
    """
    unneeded = records.unneeded_entries()
    for key in unneeded:
        store.delete(key)
    files = nbytes = 0
    leftovers = (*store.orphans(), *store.quarantined(), *prefixes.orphans(_YOUNG_S), *prefixes.quarantined())
    for path in (*leftovers, *index_folder.glob("*.tmp")):
        with contextlib.suppress(FileNotFoundError):
            size = path.lstat().st_size
            path.unlink()
            files += 1
            nbytes += size
    return GarbageReport(len(unneeded), files, nbytes + sum(unneeded.values()))


def _broken(records: Records, store: DiskStore, everything: bool) -> Iterator[OwnedEntry]:
    """Entries to compute again."""
    evicted = store.evicted()
    size = room = 0.0
    for entry, problem in _checked(store, records.entries()):
        if entry[0] in evicted and problem == "missing":
            if not size:  # where everything is evicted, nothing tells how much an entry takes until one is there
                size, room = store.nbytes() / max(1, len(store.entries())), store.room.free()
            if room <= size:
                continue
            room -= size
        if problem or everything:
            yield entry


def _checked(store: DiskStore, entries: Iterable[OwnedEntry]) -> Iterator[tuple[OwnedEntry, str | None]]:
    """Each entry with what is wrong with it.

    Other threads read ahead into the page cache, to keep the disk busy, and this one alone checks: checks are
    many short calls, and on several threads they wait for each other (on two cores 2.1 GB/s, and this way 4.0).
    """
    coming: deque[tuple[OwnedEntry, Future[None]]] = deque()
    with ThreadPoolExecutor(_READERS, "ragblend-verify") as pool:
        for entry in entries:
            coming.append((entry, pool.submit(store.read_ahead, entry[0])))
            if len(coming) > _ENTRIES_AHEAD:
                yield _checked_entry(store, *coming.popleft())
        while coming:
            yield _checked_entry(store, *coming.popleft())


def _checked_entry(store: DiskStore, entry: OwnedEntry, read: Future[None]) -> tuple[OwnedEntry, str | None]:
    read.result()
    key, token_ids = entry
    return entry, store.check(key, token_ids) if store.contains(key) else "missing"


def _at_random(entries: Iterable[OwnedEntry], count: int) -> list[OwnedEntry]:
    """``count`` of ``entries`` (or all, if fewer), each as likely as any other. Reads ``entries`` to their end."""
    kept: list[OwnedEntry] = []
    for number, entry in enumerate(entries):
        if number < count:
            kept.append(entry)
        elif (place := random.randrange(number + 1)) < count:
            kept[place] = entry
    return kept
