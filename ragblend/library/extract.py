"""Text out of PDF and HTML, in a process of its own with limits on time and memory.

Both formats can be made to expand without bound. ``extract`` starts this very file as a script:
the file's bytes go in, one JSON object comes out. It therefore imports nothing of the package.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from io import BytesIO
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from bs4.element import NavigableString, Tag

Format = Literal["html", "pdf"]
Block = tuple[int, str]

TIME_LIMIT_S = 60
MEMORY_LIMIT_BYTES = 2 * 1024**3
MAX_CHARACTERS = 64 * 1024 * 1024

_NOT_TEXT = ["script", "style", "noscript", "template", "svg", "head", "nav"]
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_BLOCKS = {
    *_HEADINGS,
    *("address", "article", "aside", "blockquote", "body", "caption", "dd", "div", "dl", "dt", "figcaption", "figure"),
    *("footer", "form", "header", "html", "li", "main", "ol", "p", "pre", "section", "table", "tr", "ul", "[document]"),
}


class ExtractionError(Exception):
    """The file gave no text; the message is the reason."""


def extract(
    format: Format,
    data: bytes,
    *,
    time_limit_s: float = TIME_LIMIT_S,
    memory_limit_bytes: int = MEMORY_LIMIT_BYTES,
) -> tuple[str, list[Block]]:
    """Title and blocks of ``data``: (heading level, heading) or (0, paragraph or page).

    Raises ExtractionError.
    """
    try:
        command = [sys.executable, "-P", __file__, format, str(memory_limit_bytes)]
        done = subprocess.run(command, input=data, capture_output=True, timeout=time_limit_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise ExtractionError(f"reading the {format.upper()} took longer than {time_limit_s:g} s") from error
    try:
        answer = json.loads(done.stdout)
    except ValueError as error:
        raise ExtractionError(f"the {format.upper()} reader ended with status {done.returncode}") from error
    if "error" in answer:
        raise ExtractionError(answer["error"])
    return answer["title"], [(level, text) for level, text in answer["blocks"]]


def html_blocks(data: bytes) -> tuple[str, Iterator[Block]]:
    """Title and blocks of an HTML page; the encoding is the page's own or guessed."""
    from bs4 import BeautifulSoup

    soup = BeautifulSoup(data, "html.parser")
    title = _one_line(soup.title.get_text()) if soup.title else ""
    for tag in soup.find_all(_NOT_TEXT):
        tag.decompose()
    for line_break in soup.find_all("br"):
        line_break.replace_with("\n")
    for cell in soup.find_all(["td", "th"]):
        cell.append(" | ")
    return title, _text_by_block(soup)


def _text_by_block(soup: Tag) -> Iterator[Block]:
    def nearest_block(string: NavigableString) -> Tag:
        return next(parent for parent in string.parents if parent.name in _BLOCKS)

    for _, group in groupby(soup.strings, key=lambda string: id(nearest_block(string))):
        strings = list(group)
        block = nearest_block(strings[0])
        text = "".join(strings)
        text = text.strip("\n") if block.name == "pre" else _one_line(text).rstrip("| ")
        if text.strip():
            yield _HEADINGS.get(block.name, 0), text


def pdf_blocks(data: bytes) -> tuple[str, Iterator[Block]]:
    """Title and one block for each page, empty pages included."""
    from pypdf import PdfReader
    from pypdf.errors import DependencyError

    reader = PdfReader(BytesIO(data))
    try:
        locked = reader.is_encrypted and not reader.decrypt("")
    except DependencyError:  # AES needs a library that ragblend does not require
        locked = True
    if locked:
        raise ExtractionError("encrypted PDF: save a copy without the password")
    title = _one_line((reader.metadata.title if reader.metadata else None) or "")
    return title, ((0, page.extract_text()) for page in reader.pages)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _limit_memory(limit_bytes: int) -> None:
    try:
        import resource
    except ImportError:  # no such limits on Windows: the time limit remains
        return
    resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))


def _answer(format: str, memory_limit_bytes: int) -> dict[str, Any]:
    try:
        title, blocks = (pdf_blocks if format == "pdf" else html_blocks)(sys.stdin.buffer.read())
        kept: list[Block] = []
        characters = 0
        for level, text in blocks:
            characters += len(text)
            if characters > MAX_CHARACTERS:
                raise ExtractionError(f"more than {MAX_CHARACTERS:,} characters of text")
            kept.append((level, text))
    except ExtractionError as error:
        return {"error": str(error)}
    except MemoryError:
        return {"error": f"reading the {format.upper()} needs more than {memory_limit_bytes:,} bytes of memory"}
    except Exception as error:  # parsers of hostile files fail in every way there is
        return {"error": f"not a readable {format.upper()} ({type(error).__name__}: {_one_line(str(error))[:200]})"}
    return {"title": title, "blocks": kept}


if __name__ == "__main__":
    memory_limit = int(sys.argv[2])
    _limit_memory(memory_limit)
    sys.stdout.write(json.dumps(_answer(sys.argv[1], memory_limit)))
