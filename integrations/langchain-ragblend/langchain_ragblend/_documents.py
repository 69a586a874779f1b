"""Between LangChain's documents and a library's passages and hits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.documents import Document

from ragblend import Hit, Passage
from ragblend.errors import ConfigError
from ragblend.field_types import is_finite_number

# Of which document a piece is: the metadata key that says so, or a function that does; None if that is of no account.
PieceOf = str | Callable[[Document], object] | None
SOURCE = "source"
# Where the metadata say how well a document was found, the higher the better: LangChain's rerankers write it, too.
RELEVANCE = "relevance_score"


def namer(piece_of: PieceOf) -> Callable[[Document], str]:
    """A function that names the document of a piece, "" for one that stands alone. Raises ConfigError."""
    if piece_of is not None and not isinstance(piece_of, str) and not callable(piece_of):
        raise ConfigError(f"piece_of is a metadata key, a function or None, not {type(piece_of).__name__}")

    def name(document: Document) -> str:
        found = piece_of(document) if callable(piece_of) else document.metadata.get(piece_of) if piece_of else None
        return "" if found is None else str(found)

    return name


def document_of(hit: Hit) -> Document:
    """A document that was given, as it was given; or a chunk of a file, with where it stands in its metadata.

    A chunk's content has its title line, as the model reads it and its KV was computed, so that a chain which
    only puts documents together reuses it.
    """
    if hit.metadata is not None:
        return Document(id=hit.document, page_content=hit.text, metadata=dict(hit.metadata))
    source = hit.source
    places = {"source": source.document, "chunk": source.chunk, "title": source.title, "heading": source.heading}
    return Document(page_content=hit.prompt_text, metadata=places)


def passages_of(documents: Any) -> tuple[Passage, ...]:
    """Documents as passages, each a chunk of its own, with its ``relevance_score`` if its metadata have one.

    Raises ConfigError for what is no document or has no text.
    """
    if not isinstance(documents, Sequence) or isinstance(documents, str | bytes):
        raise ConfigError(f"documents must be a list of documents, not {type(documents).__name__}")
    return tuple(_passage(document, f"documents[{index}]") for index, document in enumerate(documents))


def _passage(document: Any, where: str) -> Passage:
    if isinstance(document, str):
        document = Document(page_content=document)
    if not isinstance(document, Document):
        raise ConfigError(f"{where} is a {type(document).__name__}: give Documents or strings")
    if not document.page_content.strip():
        raise ConfigError(f"{where} has no text: leave it out")
    name = document.metadata.get(SOURCE) or document.id or ""
    chunk = document.metadata.get("chunk")
    number = chunk if isinstance(chunk, int) and not isinstance(chunk, bool) else 0
    found = document.metadata.get(RELEVANCE)
    score = float(found) if is_finite_number(found) else 0.0
    return Passage(text=document.page_content, document=str(name), chunk=number, score=score)
