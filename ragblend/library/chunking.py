"""Cutting documents into chunks that are exact in the generating model's tokens."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from ragblend.library.document import SEPARATOR, Document
from ragblend.prompt import PromptTemplate

if TYPE_CHECKING:
    from semantic_text_splitter import TextSplitter

# The line that names title and headings may take a quarter of a chunk, no more.
_LABEL_SHARE = 4
# Below this share of its tokens a chunk takes in sentences of the next paragraph.
_FULL_ENOUGH = 0.6
_MOST_CHARACTERS_PER_TOKEN = 16
# The splitter looks at all that it is given before every cut. It is given so many times what a chunk can be long.
_WINDOW = 8


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a document.

    text: without the headings at its edges; those before it are in ``heading``.
    start: offset of ``text`` in the document's text, in characters.
    token_ids: the chunk as it is prefilled, its title line included.
    """

    text: str
    heading: str
    start: int
    token_ids: tuple[int, ...]


class Chunker:
    """Cuts at paragraphs, else sentences, else words, filling each chunk up to ``tokens`` tokens.

    The limit counts the title line. Sections that are short share a chunk, which is named after its
    first one; the headings of the others stay in its text.
    """

    def __init__(self, template: PromptTemplate, tokens: int) -> None:
        self.template = template
        self.tokens = tokens

    def cut(self, document: Document) -> tuple[str, list[Chunk]]:
        """The title, shortened if need be, and the chunks in order; no chunks if there is only a title."""
        title = self._shortened_title(document.title)
        capacity = self.tokens
        while True:
            chunks = list(self._cut(document, title, capacity))
            excess = max((len(chunk.token_ids) for chunk in chunks), default=0) - self.tokens
            if excess <= 0:
                return title, chunks
            # The text's tokens may merge with another title line than the one that was counted with.
            capacity -= excess

    def _cut(self, document: Document, title: str, capacity: int) -> Iterator[Chunk]:
        longest = max(self._heading_labels(document, title), key=lambda heading: self._count(title, heading, ""))

        def count(text: str) -> int:
            # Text this long is no chunk in any tokenizer, and counting it over and over takes minutes.
            too_long = len(text) > _most_characters(capacity)
            return capacity + 1 if too_long else self._count(title, longest, text)

        for start, end in _spans(document.text, count, capacity):
            start, text = _without_outer_headings(document, start, end)
            if text:
                heading = self._shortened_heading(title, document.heading_path(start))
                yield Chunk(text, heading, start, self.template.chunk_ids(title, heading, text))

    def _heading_labels(self, document: Document, title: str) -> list[str]:
        paths = {document.heading_path(heading.start) for heading in document.headings}
        return ["", *sorted({self._shortened_heading(title, path) for path in paths})]

    def _shortened_title(self, title: str) -> str:
        while title and self._count(title, "", "") > self.tokens // _LABEL_SHARE:
            title = title[: len(title) * 3 // 4].rstrip()
        return title

    def _shortened_heading(self, title: str, heading: str) -> str:
        """``heading`` without its outermost parts, as far as the title line has to be shorter."""
        while heading and self._count(title, heading, "") > self.tokens // _LABEL_SHARE:
            heading = heading.partition(SEPARATOR)[2]
        return heading

    def _count(self, title: str, heading: str, text: str) -> int:
        return len(self.template.chunk_ids(title, heading, text))


def _spans(text: str, count: Callable[[str], int], capacity: int) -> Iterator[tuple[int, int]]:
    """Pieces of ``text``, each of at most ``capacity`` by ``count``, as offsets of start and end.

    Whole paragraphs first; a piece that they leave too empty is filled up with sentences of what follows.
    """
    from semantic_text_splitter import TextSplitter

    splitter = TextSplitter.from_callback(count, capacity)
    without_paragraphs = re.sub(r"\n\s*\n", lambda blank: " " * len(blank[0]), text)
    start = end = 0
    for following, piece in _pieces(splitter, text, _most_characters(capacity)):
        if end > start and count(text[start:end]) >= _FULL_ENOUGH * capacity:
            yield start, end
            start = following
        end = following + len(piece)
        *filled, (rest, _) = splitter.chunk_indices(without_paragraphs[start:end])
        yield from ((start + offset, start + offset + len(part)) for offset, part in filled)
        start += rest
    if end > start:
        yield start, end


def _pieces(splitter: TextSplitter, text: str, longest: int) -> Iterator[tuple[int, str]]:
    """The splitter's pieces of ``text`` with their offsets, each of at most ``longest`` characters.

    Found a window at a time. A piece that ends so near to a window's end that more could have joined it is found again
    in the next window, which begins with it; so they are the pieces of the whole.
    """
    begin = 0
    while begin < len(text):
        window = text[begin : begin + _WINDOW * longest]
        end = begin + len(window)
        settled = end if end == len(text) else end - longest
        for offset, piece in splitter.chunk_indices(window):
            if offset and begin + offset + len(piece) > settled:
                end = begin + offset
                break
            yield begin + offset, piece
        begin = end


def _most_characters(tokens: int) -> int:
    return _MOST_CHARACTERS_PER_TOKEN * tokens


def _without_outer_headings(document: Document, start: int, end: int) -> tuple[int, str]:
    """Cut heading lines off both ends: the first are named in this chunk's label, the last in the next one's."""
    first = bisect_left(document.headings, start, key=attrgetter("start"))
    last = bisect_right(document.headings, end, key=attrgetter("end"))
    inside = document.headings[first:last]
    for heading in inside:
        if not document.text[start : heading.start].strip():
            start = heading.end
    for heading in reversed(inside):
        if start <= heading.start and not document.text[heading.end : end].strip():
            end = heading.start
    text = document.text[start:end]
    return start + len(text) - len(text.lstrip()), text.strip()
