"""KV for the documents of somebody else's vector store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.documents import BaseDocumentTransformer, Document

from langchain_ragblend._documents import SOURCE, PieceOf, namer
from langchain_ragblend._model import RagBlendModel
from ragblend import Library, Passage, PrecomputeReport
from ragblend.errors import ConfigError


class PrecomputeKV(BaseDocumentTransformer):
    """Computes KV for documents on their way into Chroma, pgvector, FAISS or any other store.

    .. code-block:: python

        chunks = PrecomputeKV(llm).transform_documents(splitter.split_documents(documents))
        vector_store.add_documents(chunks)

    kept_by: the ``ChatRagBlend`` or ``RagBlendLLM`` that will answer, or its open Library.
    form: how the chain writes a document into the prompt; its text, where nothing else is said. What is found
    again is exactly this, without white space at its ends.
    piece_of: documents in a row with the same value under this metadata key, or of this function, are pieces of one,
    in order, and each is prefilled behind those before it. A document without one, or any with None, stands alone.

    Documents pass through unchanged: no KV is put into their metadata. ``report`` tells of the last run.
    """

    def __init__(
        self,
        kept_by: RagBlendModel | Library,
        form: Callable[[Document], str] = lambda document: document.page_content,
        *,
        piece_of: PieceOf = SOURCE,
    ) -> None:
        library = kept_by.library if isinstance(kept_by, RagBlendModel) else kept_by
        if not isinstance(library, Library):
            raise ConfigError(f"KV is kept by a ragblend model or a Library, not by a {type(kept_by).__name__}")
        self.library = library
        self.form = form
        self._name = namer(piece_of)
        self.report: PrecomputeReport | None = None

    def transform_documents(self, documents: Sequence[Document], **kwargs: Any) -> Sequence[Document]:
        """The documents themselves, once their KV is there. Raises ragblend's errors."""
        if kwargs:
            raise ConfigError(f"unknown arguments: {', '.join(kwargs)}")
        self.report = self.library.precompute(map(self._piece, documents))
        return documents

    def _piece(self, document: Document) -> str | Passage:
        text, name = self.form(document), self._name(document)
        return Passage(text, document=name) if name and isinstance(text, str) and text.strip() else text
