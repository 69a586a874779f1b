"""A library that grows: what opening it, looking a chunk up and searching cost, and what it takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ragblend.config import require
from ragblend.errors import PeerError
from ragblend.kernels.layout import LayerKV
from ragblend.library import layout
from ragblend.library.chunking import Chunk
from ragblend.library.library import Library
from ragblend.store.base import ChunkKV
from ragblend.store.files import Files
from ragblend.store.key import digest_fields

DIMENSIONS = 384  # of the embedded embedder
WINDOWS = 5  # vectors of a chunk of 256 tokens, in the example handbook
_CHUNKS_PER_DOCUMENT = 50
_TOKENS = 4


@dataclass(frozen=True, slots=True)
class LibraryRow:
    """A library of ``chunks`` chunks with ``vectors`` vectors, in a process that has just started.

    open_s: opening it. first_search_s: the first search, which loads the index. search_s and lookup_s: medians
    of later searches and of opening a chunk's KV. memory_bytes: what the process holds more than before it
    opened the library. index_bytes, catalogue_bytes: those files; KV is left out, because here it is none.
    """

    chunks: int
    vectors: int
    open_s: float
    first_search_s: float
    search_s: float
    lookup_s: float
    memory_bytes: int
    index_bytes: int
    catalogue_bytes: int


class _NotSynced(Files):
    """A made-up library need not survive a crash, and waiting for the disk would take longer than all the rest."""

    def sync(self, descriptor: int) -> None:
        """Do not wait."""


def grow_library(
    sizes: Sequence[int],
    *,
    windows: int = WINDOWS,
    searches: int = 20,
    progress: Callable[[int, int], None] | None = None,
) -> list[LibraryRow]:
    """Measure one library at each of ``sizes``. Its texts, vectors and KV are random, the KV a few bytes a chunk.

    windows: vectors of each chunk besides its own. progress: called with the chunks there and their total.
    Raises ConfigError, PeerError (the measuring process failed).
    """
    require(bool(sizes), "name at least one number of chunks")
    require(min(sizes) >= 1, f"a library has at least 1 chunk, got {min(sizes)}")
    require(windows >= 0, f"windows must not be negative, got {windows}")
    rows = []
    with tempfile.TemporaryDirectory(prefix="ragblend-growth-") as name:
        folder = Path(name) / "growing.rag"
        held = 0
        for size in sorted(set(sizes)):
            for there in _fill(folder, held, size, windows):
                if progress is not None:
                    progress(there, max(sizes))
            held = size
            rows.append(_measure(folder, size, size * max(1, windows), searches))
    return rows


def synthetic_vectors(first: int, count: int) -> np.ndarray:
    """Vectors [count, dimensions] of length 1: those of number ``first`` and the following ones."""
    made = np.random.default_rng(first).standard_normal((count, DIMENSIONS), dtype=np.float32)
    return np.asarray(made / np.linalg.norm(made, axis=1, keepdims=True))


def entry_of(number: int) -> tuple[str, tuple[int, ...]]:
    """Key and token ids of the chunk with this number."""
    return digest_fields(f"chunk {number}"), tuple(range(number, number + _TOKENS))


def _fill(folder: Path, held: int, size: int, windows: int) -> Iterator[int]:
    """Add chunks until there are ``size``; yields how many there are."""
    with Library.open(folder, files=_NotSynced()) as library:
        for first in range(held, size, _CHUNKS_PER_DOCUMENT):
            numbers = range(first, min(size, first + _CHUNKS_PER_DOCUMENT))
            chunks, keys, entries = [], [], []
            for number in numbers:
                key, token_ids = entry_of(number)
                rows = torch.full((1, _TOKENS, 4), float(number % 97))
                entries.append(library.store.write_blob(key, ChunkKV(token_ids, (LayerKV(rows, rows),))))
                chunks.append(Chunk(f"This is the text of chunk {number}.", "", 0, token_ids))
                keys.append(key)
            count = len(numbers)
            own = synthetic_vectors(first, count)
            parts = synthetic_vectors(size + first, count * windows).reshape(count, windows, DIMENSIONS)
            with library.catalogue.transaction():
                library.store.record(entries)
                path = f"/{first:08}"
                library._records.replace(path, "", path, chunks, keys, list(own), windows=list(parts))
            yield numbers[-1] + 1
        library._retriever.save()


def _measure(folder: Path, chunks: int, vectors: int, searches: int) -> LibraryRow:
    command = [sys.executable, "-P", "-m", "ragblend.bench.growth.probe", str(folder), str(chunks), str(searches)]
    own = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    finished = subprocess.run(command, env=own, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        raise PeerError(f"the measuring process ended: {finished.stderr.strip().rpartition(chr(10))[2]}")
    return LibraryRow(
        chunks=chunks,
        vectors=vectors,
        **json.loads(finished.stdout),
        index_bytes=_bytes_in(folder / layout.INDEX),
        catalogue_bytes=sum(path.stat().st_size for path in folder.glob(f"{layout.CATALOGUE}*")),
    )


def _bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
