"""From the bytes of a file to a Document, by its format."""

from __future__ import annotations

from itertools import accumulate
from pathlib import PurePath

from ragblend.errors import DocumentError
from ragblend.library.document import Document, Heading, assemble
from ragblend.library.extract import Block, ExtractionError, extract
from ragblend.library.markdown import parse_markdown, unwrap
from ragblend.library.reading import decode, refuse_binary

_MARKDOWN = {".md", ".markdown", ".mdown", ".mkd"}
_HTML = {".html", ".htm", ".xhtml"}
_PROSE = {".txt", ".text", ".rst", ".adoc", ""}


def load(path: str, data: bytes) -> Document:
    """The document in ``data``. Unknown formats are read as text where they are text.

    Raises DocumentError with the reason for what cannot be read or has no text.
    """
    document = _parse(path, data)
    if not document.text.strip():
        raise DocumentError(path, "no text in it")
    return document


def _parse(path: str, data: bytes) -> Document:
    suffix = PurePath(path).suffix.lower()
    try:
        if suffix == ".pdf" or data.startswith(b"%PDF-"):
            return _from_pages(*extract("pdf", data))
        if suffix in _HTML:
            refuse_binary(path, data)
            title, blocks = extract("html", data)
            return assemble(_valid(title), [(level, _valid(text)) for level, text in blocks])
    except ExtractionError as error:
        raise DocumentError(path, str(error)) from error
    text = decode(path, data)
    if suffix in _MARKDOWN:
        return parse_markdown(text)
    return Document("", unwrap(text) if suffix in _PROSE else text)


def _from_pages(title: str, pages: list[Block]) -> Document:
    """Pages run on into each other, as sentences do; each is a heading without a line of its own."""
    texts = [_valid(text).strip() for _, text in pages]
    starts = list(accumulate((len(text) + 1 for text in texts), initial=0))[:-1]
    headings = tuple(Heading(start, start, 1, f"page {number}") for number, start in enumerate(starts, start=1))
    return Document(_valid(title), unwrap("\n".join(texts)), headings)


def _valid(text: str) -> str:
    """``text`` without what no store or tokenizer takes: NUL, halves of surrogate pairs."""
    return text.replace("\0", "").encode("utf-8", "replace").decode("utf-8")
