"""A document as the library sees it: a title, text, and where its headings are."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter

SEPARATOR = " > "


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading of ``level`` 1 (outermost) to 6, whose line is ``text[start:end]`` of the document.

    ``start == end`` where the heading is no part of the text (the pages of a PDF).
    """

    start: int
    end: int
    level: int
    text: str


@dataclass(frozen=True)
class Document:
    """Plain text with its headings in order of ``start``; offsets count characters of ``text``.

    The title comes from the content, never from the file's name, so that copies share their KV.
    """

    title: str
    text: str
    headings: tuple[Heading, ...] = field(default=())

    @cached_property
    def _paths(self) -> list[str]:
        """The heading path in force after each heading, outermost first, without the title."""
        paths = []
        open_headings: list[Heading] = []
        for heading in self.headings:
            while open_headings and open_headings[-1].level >= heading.level:
                open_headings.pop()
            open_headings.append(heading)
            paths.append(SEPARATOR.join(h.text for h in open_headings if h.text not in ("", self.title)))
        return paths

    def heading_path(self, offset: int) -> str:
        """The headings above the character at ``offset``, for example ``Warranty > Duration``."""
        position = bisect_right(self.headings, offset, key=attrgetter("start"))
        return self._paths[position - 1] if position else ""


def assemble(title: str, blocks: Sequence[tuple[int, str]]) -> Document:
    """A document from blocks in order: (0, paragraph) or (heading level, heading)."""
    pieces: list[str] = []
    headings: list[Heading] = []
    offset = 0
    for level, text in blocks:
        if level:
            headings.append(Heading(offset, offset + len(text), level, text))
        pieces.append(text)
        offset += len(text) + len("\n\n")
    return Document(title or first_title(headings), "\n\n".join(pieces), tuple(headings))


def first_title(headings: Iterable[Heading]) -> str:
    """The text of the first outermost heading, or nothing."""
    return next((heading.text for heading in headings if heading.level == 1), "")
