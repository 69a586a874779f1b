"""Finding the chunks that are nearest to a question."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ragblend.config import require
from ragblend.library.embedding import Vectors
from ragblend.library.index import Ids, VectorIndex
from ragblend.library.records import Records, StoredChunk
from ragblend.library.report import Hit
from ragblend.store.encryption import Cipher

# Equal texts that were embedded in different batches differ in the sixth decimal, as the index keeps them.
_SCORE_DECIMALS = 5
# What is fetched at first; if it is too little for as many chunks as are wanted, more is.
_VECTORS_PER_CHUNK = 4


class Retriever:
    """Search in one namespace. The index follows the catalogue, whichever process changes it.

    path: the index file, a cache. stamp: tells what that file has to belong to. cipher: seals and opens it.
    """

    def __init__(self, records: Records, path: Path, stamp: Callable[[], str], cipher: Cipher | None = None) -> None:
        self.records = records
        self.path = path
        self.stamp = stamp
        self._cipher = cipher
        self._index: VectorIndex | None = None
        self._version = -1
        self._lock = threading.Lock()

    def search(self, vector: Vectors, k: int, where: Callable[[Hit], bool] | None = None) -> list[Hit]:
        """The ``k`` best chunks (or all, if fewer), best first; equal ones by document and position.

        A chunk is as good as the best of its vectors.

        vector: [dimensions], of length 1. where: what a hit must fulfil. A chunk that stands in several files is
        found once. Raises ConfigError for a vector of another length.
        """
        count = _VECTORS_PER_CHUNK * k
        while True:
            with self._lock:
                index = self._current()
                if index is None:
                    return []
                require(
                    len(vector) == index.dimensions,
                    f"the vector has {len(vector)} dimensions, those of the library have {index.dimensions}: "
                    "search with the embedder that it was made with",
                )
                scores, ids = index.search(vector, count)
                exhausted = count >= len(index)
            chunks = self.records.chunks(ids)
            if len(chunks) < len(set(ids.tolist())):  # a document was replaced or removed since the index was looked at
                continue
            rounded = np.round(scores.astype(float), _SCORE_DECIMALS)
            hits = [hit for hit in _ranked(ids, rounded.tolist(), chunks) if where is None or where(hit)]
            # Whatever was not fetched scores no better than the last one: it must not tie with a hit.
            if exhausted or (len(hits) >= k and rounded[-1] < hits[k - 1].score):
                return hits[:k]
            count *= 4

    def save(self) -> None:
        """Bring the index up to date and write it to its file."""
        with self._lock:
            self._synchronise()
            # The file only saves time, so a full disk is no reason to fail.
            with contextlib.suppress(OSError):
                if self._index is None:
                    self.path.unlink(missing_ok=True)
                else:
                    self._index.save(self.path, self.stamp(), self._cipher)

    def rebuild(self) -> None:
        """Build the index from the catalogue alone, whatever the file says."""
        with self._lock:
            self._index, self._version = None, -1
            self.path.unlink(missing_ok=True)
        self.save()

    def is_sound(self) -> bool:
        """Whether the file is whole and has exactly the catalogue's chunks."""
        wanted = self.records.chunk_ids()
        index = VectorIndex.load(self.path, self.stamp(), self._cipher)
        return np.array_equal(wanted, index.ids) if index else not len(wanted)

    def is_empty(self) -> bool:
        """Whether nothing is indexed yet."""
        with self._lock:
            return self._current() is None

    def _current(self) -> VectorIndex | None:
        """The index as the catalogue is now, or None if there is nothing in it."""
        if self._version != self.records.version():
            self._synchronise()
        return self._index if self._index is not None and len(self._index) else None

    def _synchronise(self) -> None:
        """Add and remove what the catalogue has that the index has not, and the other way round."""
        version = self.records.version()
        index = self._index or VectorIndex.load(self.path, self.stamp(), self._cipher)
        wanted = self.records.chunk_ids()
        present: Ids = index.ids if index else np.empty(0, np.int64)
        if index is not None:
            index.remove(np.setdiff1d(present, wanted))
            index = index if len(index) else None  # what comes next may be of another embedder
        for ids, vectors in self.records.embeddings(np.setdiff1d(wanted, present)):
            index = index or VectorIndex(vectors.shape[1])
            index.add(ids, vectors)
        self._index, self._version = index, version


def _ranked(ids: Ids, scores: list[float], chunks: dict[int, StoredChunk]) -> list[Hit]:
    """Best first, each entry once; but texts that were given are each their own, like their metadata."""
    scored = [(score, chunks[id]) for id, score in zip(ids.tolist(), scores, strict=True)]
    scored.sort(key=lambda pair: (-pair[0], pair[1].document, pair[1].ordinal))
    hits: dict[str, Hit] = {}
    for score, chunk in scored:
        name = chunk.entry_key if chunk.metadata is None else f"{chunk.entry_key} {chunk.document}"
        if name not in hits:
            source = chunk.source(score)
            metadata = None if chunk.metadata is None else json.loads(chunk.metadata)
            hits[name] = Hit(chunk.segment(source), source, np.frombuffer(chunk.embedding, np.float32), metadata)
    return list(hits.values())
