"""Cutting prompt text into blocks that may come again in other prompts."""

from __future__ import annotations

import re
from collections.abc import Iterator

# Blank lines, or a line of dashes and the like, with which prompt templates set documents apart.
_SEPARATOR = re.compile(r"^[ \t]*([-=*_~#])\1{2,}[ \t]*$|\n(?:[ \t]*(?:\n|\Z))+", re.MULTILINE)
# A heading or a line of metadata belongs to what follows it.
_SHORT = 100


def blocks(text: str) -> Iterator[tuple[int, int]]:
    """Start and end of each block of ``text``, without outer whitespace.

    Blocks end at blank lines and at lines drawn of dashes, equals signs, asterisks and the like. A short
    one goes with the block after it, unless there is such a line between them.
    """
    pending: int | None = None
    for start, end, drawn in _pieces(text):
        if pending is None:
            pending = start
        if drawn or end - pending >= _SHORT:
            yield pending, end
            pending = None
    if pending is not None:
        yield pending, end


def _pieces(text: str) -> Iterator[tuple[int, int, bool]]:
    """Start and end of what stands between separators, and whether a drawn line follows it, or nothing."""
    found = [*_SEPARATOR.finditer(text), None]
    cursor = 0
    previous: tuple[int, int] | None = None
    for separator in found:
        end = separator.start() if separator else len(text)
        inner = text[cursor:end]
        drawn = separator is None or separator[1] is not None
        stripped = inner.strip()
        if stripped:
            if previous:
                yield (*previous, False)
            begin = cursor + len(inner) - len(inner.lstrip())
            previous = (begin, begin + len(stripped))
        if drawn and previous:
            yield (*previous, True)
            previous = None
        cursor = separator.end() if separator else end
