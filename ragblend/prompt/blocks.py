"""Cutting prompt text into blocks that may come again in other prompts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

# Blank lines, or a line of dashes and the like, with which prompt templates set documents apart.
_SEPARATOR = re.compile(r"^[ \t]*([-=*_~#])\1{2,}[ \t]*$|\n(?:[ \t]*(?:\n|\Z))+", re.MULTILINE)
# "Context:" or "Query:" at the beginning of a line, by which prompt templates name what follows.
_LABEL = re.compile(r"^[ \t]*[^\W\d_]\w*(?: \w+){0,2} ?(?::(?=\s|\Z)|：)", re.MULTILINE)
# A heading, a line of metadata, an item of a list.
_SHORT = 100


def blocks(text: str) -> Iterator[tuple[int, int]]:
    """Start and end of each block of ``text``, without outer whitespace.

    Blocks end at blank lines and at lines drawn of dashes, equals signs, asterisks and the like. A label is
    no part of the long text that it names, nor of what stands before it. Short ones go together up to the
    next long one: documents end with the heading of what another one goes on with, and come in any order.
    """
    pending: tuple[int, int] | None = None
    for start, end, closed in _pieces(text):
        if pending and end - start >= _SHORT:
            yield pending
            pending = None
        pending = (pending[0] if pending else start, end)
        if closed or end - pending[0] >= _SHORT:
            yield pending
            pending = None


def _pieces(text: str) -> Iterator[tuple[int, int, bool]]:
    """Start and end of what stands between separators, and whether nothing may be joined to it."""
    cursor = 0
    previous: tuple[int, int] | None = None
    for separator in [*_SEPARATOR.finditer(text), None]:
        parts, named = _parts(text, cursor, separator.start() if separator else len(text))
        for number, part in enumerate(parts):
            if previous:
                yield (*previous, number > 0)
            previous = part
        if previous and (named or separator is None or separator[1]):
            yield (*previous, True)
            previous = None
        cursor = separator.end() if separator else len(text)


def _parts(text: str, start: int, end: int) -> tuple[list[tuple[int, int]], bool]:
    """The parts of a paragraph between borders of labels, and whether it ends with a label of what follows.

    A label of few words, such as those in a list of figures, is no border.
    """
    labels = list(_LABEL.finditer(text, start, end))
    # Each label with where its text begins; what stands before the first one has none.
    texts = [(start, start), *(label.span() for label in labels)]
    stops = [*(label.start() for label in labels), end]
    borders = {start, end}
    for (label, begin), stop in zip(texts, stops, strict=True):
        if len(text[begin:stop].strip()) >= _SHORT:
            borders |= {label, begin, stop}
    ordered = sorted(borders)
    stripped = (_stripped(text, first, last) for first, last in pairwise(ordered))
    named = bool(labels) and not text[labels[-1].end() : end].strip()
    return [part for part in stripped if part], named


def _stripped(text: str, start: int, end: int) -> tuple[int, int] | None:
    inner = text[start:end]
    begin = start + len(inner) - len(inner.lstrip())
    return (begin, begin + len(inner.strip())) if inner.strip() else None
