"""The texts that a namespace has KV of, found inside prompts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np

from ragblend.library.index import Ids
from ragblend.library.precomputed import PrecomputedTexts, Text
from ragblend.library.records import Records, StoredChunk
from ragblend.prompt import Segment, chunk_text
from ragblend.prompt.matching import Match, TextIndex
from ragblend.results import Source

_PAGE = 256


class KnownTexts:
    """Precomputed texts, and documents' chunks as the model reads them. Follows the catalogue.

    In the index a chunk stands under its id, a text under its id negated.
    """

    def __init__(self, records: Records, texts: PrecomputedTexts) -> None:
        self._records = records
        self._texts = texts
        self._index = TextIndex()
        self._chunks = _Followed(records.version, records.text_owners, self._read_chunks)
        self._own = _Followed(texts.version, lambda: -texts.ids(), self._read_texts)
        self._lock = threading.Lock()

    def find(self, text: str) -> list[tuple[Match, Segment]]:
        """Known texts in ``text`` in order, the longest first where they overlap, each as a chunk of a prompt."""
        with self._lock:
            for followed in (self._chunks, self._own):
                followed.catch_up(self._index)
        segments: dict[int, Segment] = {}

        def read(owner: int) -> str | None:
            for _, known, segment in self._read(np.array([owner])):
                segments[owner] = segment
                return known
            return None

        return [(match, segments[match.owner]) for match in self._index.find(text, read)]

    def _read(self, owners: Ids) -> Iterator[tuple[int, str, Segment]]:
        yield from self._read_chunks(owners[owners > 0])
        yield from self._read_texts(owners[owners < 0])

    def _read_chunks(self, owners: Ids) -> Iterator[tuple[int, str, Segment]]:
        for id, chunk in self._records.chunks(owners).items():
            given = chunk.metadata is not None
            text = chunk.text.strip() if given else chunk_text(chunk.title, chunk.heading, chunk.text)
            yield id, text, Segment("chunk", chunk.token_ids, chunk.entry_key, _source_of_chunk(chunk))

    def _read_texts(self, owners: Ids) -> Iterator[tuple[int, str, Segment]]:
        for id, text in self._texts.read(-owners):
            yield -id, text.text, Segment("chunk", text.token_ids, text.entry_key, _source_of_text(text))


class _Followed:
    """One kind of owner in the catalogue, by its change counter."""

    def __init__(
        self,
        version: Callable[[], int],
        owners: Callable[[], Ids],
        read: Callable[[Ids], Iterator[tuple[int, str, Segment]]],
    ) -> None:
        self._current_version = version
        self._current_owners = owners
        self._read = read
        self._version = 0
        self._owners: Ids = np.empty(0, np.int64)

    def catch_up(self, index: TextIndex) -> None:
        version = self._current_version()
        if version == self._version:
            return
        wanted = self._current_owners()
        index.remove(np.setdiff1d(self._owners, wanted))
        new = np.setdiff1d(wanted, self._owners)
        pages = (self._read(new[first : first + _PAGE]) for first in range(0, len(new), _PAGE))
        index.add((owner, text) for page in pages for owner, text, _ in page)
        self._owners, self._version = wanted, version


def _source_of_chunk(chunk: StoredChunk) -> Source:
    return Source(chunk.document, chunk.ordinal, 0.0, chunk.text, chunk.title, chunk.heading)


def _source_of_text(text: Text) -> Source:
    return Source("", 0, 0.0, text.text)
