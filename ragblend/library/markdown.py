"""Reading Markdown and plain prose line by line: headings, and paragraphs without hard line breaks.

A linear scan on purpose: it meets files of any size and origin.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ragblend.library.document import Document, Heading, first_title

_FRONT_MATTER = re.compile(r"\A---\n(.*?)\n(?:---|\.\.\.)\n", re.DOTALL)
_FRONT_TITLE = re.compile(r"^title:\s*[\"']?(.*?)[\"']?\s*$", re.MULTILINE)
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_ATX = re.compile(r" {0,3}(#{1,6})[ \t]+")
_CLOSING_MARKS = re.compile(r"(?:^|[ \t])#+$")
_UNDERLINE = re.compile(r" {0,3}(=+|-+)[ \t]*$")
_LINK = re.compile(r"!?\[([^\]\[]*)\]\([^()]*\)")
# What starts a line of its own: lists, quotes, tables, headings, fences, indented code, rules.
_STARTS_BLOCK = re.compile(r"\s*(?:[-*+]\s|\d{1,9}[.)]\s|#{1,6}\s|[>|]|`{3}|~{3}|[-*_=]{2,}\s*\Z|\Z)| {4}|\t")
# Shorter lines than this were broken on purpose: verse, addresses, menus.
_SHORTEST_WRAPPED_LINE = 40


@dataclass(frozen=True, slots=True)
class _Line:
    start: int
    text: str
    fenced: bool

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def parse_markdown(text: str) -> Document:
    """Headings (ATX and setext, outside fences) and the title: front matter's, else the first level 1."""
    front = _FRONT_MATTER.match(text)
    named = _FRONT_TITLE.search(front.group(1)) if front else None
    if front:
        text = text[front.end() :]
    headings = tuple(_headings(text))
    return Document(named.group(1) if named else first_title(headings), unwrap(text), headings)


def unwrap(text: str) -> str:
    """``text`` with the line breaks inside paragraphs turned into spaces; all offsets stay.

    Wrapped lines would otherwise look like better places to cut than the ends of sentences.
    """
    joined: list[str] = []
    previous = _Line(0, "", False)
    for line in _lines(text):
        joined += (" " if _goes_on(previous, line) else "\n", line.text)
        previous = line
    return "".join(joined[1:])


def _goes_on(previous: _Line, line: _Line) -> bool:
    """Whether ``line`` belongs to the paragraph of the line before it."""
    if previous.fenced or len(previous.text) < _SHORTEST_WRAPPED_LINE or previous.text.endswith(("  ", "\\")):
        return False
    stands_alone = _ATX.match(previous.text) or previous.text.lstrip().startswith("|")
    return not stands_alone and not _STARTS_BLOCK.match(line.text)


def _headings(text: str) -> Iterator[Heading]:
    previous = _Line(0, "", False)
    for line in _lines(text):
        if not line.fenced:
            atx = _ATX.match(line.text)
            underline = _UNDERLINE.match(line.text)
            if atx:
                title = _CLOSING_MARKS.sub("", line.text[atx.end() :].rstrip())
                yield Heading(line.start, line.end, len(atx.group(1)), _plain(title))
            elif underline and not previous.fenced and not _STARTS_BLOCK.match(previous.text):
                level = 1 if underline.group(1).startswith("=") else 2
                yield Heading(previous.start, line.end, level, _plain(previous.text))
        previous = line


def _lines(text: str) -> Iterator[_Line]:
    """Lines with their offsets; ``fenced`` covers fenced code and its fences."""
    start = 0
    fence = ""
    for line in text.split("\n"):
        mark = _FENCE.match(line)
        yield _Line(start, line, bool(fence or mark))
        if mark and not fence:
            fence = mark.group(1)
        elif mark and mark.group(1).startswith(fence) and not line[mark.end() :].strip():
            fence = ""
        start += len(line) + 1


def _plain(text: str) -> str:
    return " ".join(re.sub(r"[*`]", "", _LINK.sub(r"\1", text)).split())
