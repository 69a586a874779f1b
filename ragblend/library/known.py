"""The texts that a namespace has KV of, found inside prompts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ragblend.library.index import Ids
from ragblend.library.precomputed import PrecomputedTexts
from ragblend.library.records import Records, prompt_text
from ragblend.prompt import Segment
from ragblend.prompt.matching import Match, TextIndex
from ragblend.results import Source

_PAGE = 256
# Precomputed texts are numbered behind all chunks.
_TEXTS = 1 << 62


@dataclass(frozen=True, slots=True)
class Found:
    """A known text at ``start..end`` of a prompt. text: all of it. segment: the chunk that it is.

    cut: the prompt has it without the white space at its end.
    """

    start: int
    end: int
    text: str
    segment: Segment
    cut: bool


class KnownTexts:
    """Precomputed texts, and documents' chunks as the model reads them. Follows the catalogue.

    A chunk of a file ends with a blank line, which templates keep, shorten or strip. So texts are found
    without outer white space, and what of it stands in the prompt is looked at then.

    One text may be known several times, with KV that was prefilled behind different things. A prompt gets that of
    the chunk that is there for the longest time, and of a precomputed text only where no chunk says the same.
    """

    def __init__(self, records: Records, texts: PrecomputedTexts) -> None:
        self._records = records
        self._texts = texts
        self._index = TextIndex()
        self._chunks = _Followed(records.version, records.text_owners, records.prompt_texts)
        self._own = _Followed(texts.version, lambda: texts.ids() + _TEXTS, self._numbered)
        self._lock = threading.Lock()

    def chunk(self, text: str) -> Segment | None:
        """The chunk that is this text and nothing else."""
        found = self.find(text)
        is_all = len(found) == 1 and (found[0].start, found[0].end, found[0].cut) == (0, len(text), False)
        return found[0].segment if is_all else None

    def find(self, text: str) -> list[Found]:
        """Known texts in ``text`` in order, the longest first where they overlap."""
        with self._lock:
            for followed in (self._chunks, self._own):
                followed.catch_up(self._index)
        known: dict[int, tuple[str, Segment]] = {}

        def read(owner: int) -> str | None:
            found = self._read(owner)
            if found is None:
                return None
            known[owner] = found
            return found[0].strip()

        return [_found(text, match, *known[match.owner]) for match in self._index.find(text, read)]

    def _read(self, owner: int) -> tuple[str, Segment] | None:
        """A known text, and the chunk of a prompt that it is; checked, and None if it is gone."""
        id = np.array([owner % _TEXTS])
        for chunk in self._records.chunks(id).values() if owner < _TEXTS else ():
            text = prompt_text(chunk.title, chunk.heading, chunk.text, chunk.metadata)
            return text, chunk.segment(chunk.source(0.0))
        for _, own, in_context in self._texts.read(id) if owner > _TEXTS else ():
            source = Source("", 0, 0.0, own.text)
            return own.text, Segment("chunk", own.token_ids, own.entry_key, source, in_context=in_context)
        return None

    def _numbered(self, owners: Ids) -> Iterator[tuple[int, str]]:
        return ((id + _TEXTS, text) for id, text in self._texts.prompt_texts(owners - _TEXTS))


def _found(prompt: str, match: Match, text: str, segment: Segment) -> Found:
    tail = text[len(text.rstrip()) :]
    if prompt.startswith(tail, match.end):
        return Found(match.start, match.end + len(tail), text, segment, cut=False)
    return Found(match.start, match.end, text, segment, cut=True)


class _Followed:
    """One kind of owner in the catalogue, by its change counter."""

    def __init__(
        self,
        version: Callable[[], int],
        owners: Callable[[], Ids],
        read: Callable[[Ids], Iterator[tuple[int, str]]],
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
        index.add((owner, text.strip()) for page in pages for owner, text in page)
        self._owners, self._version = wanted, version
