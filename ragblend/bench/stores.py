"""Stores that benchmarks measure on: one on the disk for a while, and copies in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from ragblend.errors import StoreError
from ragblend.kernels.layout import Codec
from ragblend.prompt import Segment
from ragblend.store.base import KVStore, read_whole
from ragblend.store.catalogue import Catalogue
from ragblend.store.disk import DiskStore
from ragblend.store.memory import MemoryStore

# More than any prompt's chunks take: their number bounds what is held.
UNBOUNDED = 1 << 50


@contextmanager
def temporary_store(make: Callable[[Path, Catalogue], DiskStore] = DiskStore) -> Iterator[DiskStore]:
    """An empty store in a folder that is deleted after the block."""
    with (
        tempfile.TemporaryDirectory(prefix="ragblend-bench-") as folder,
        closing(Catalogue(Path(folder) / "catalogue.db")) as catalogue,
        closing(make(Path(folder), catalogue)) as store,
    ):
        yield store


def in_memory(store: KVStore, chunks: Sequence[Segment], codec: Codec = "raw") -> MemoryStore:
    """A copy of the chunks, kept in ``codec``. Raises StoreError for one that the store does not have."""
    memory = MemoryStore(budget_bytes=UNBOUNDED, codec=codec)
    for chunk in chunks:
        reader = store.open(chunk.key or "", chunk.token_ids)
        if reader is None:
            raise StoreError("a chunk that was just computed is not in its store")
        with closing(reader):
            memory.put(chunk.key or "", read_whole(reader, chunk.token_ids))
    return memory
