"""A retriever over a ragblend library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import run_in_executor
from pydantic import ConfigDict, Field, PrivateAttr

from langchain_ragblend._documents import RELEVANCE, document_of
from ragblend import Library
from ragblend.config import ChunkOrder
from ragblend.errors import ConfigError
from ragblend.library.order import in_order


class RagBlendRetriever(BaseRetriever):
    """The chunks of a library nearest to a question, for example of files that ``ragblend index`` read.

    .. code-block:: python

        retriever = RagBlendRetriever(library="handbook.rag", k=4)

    library: an open Library, or the folder of one, which must be there and is opened read-only. k: how many
    documents, also for one call: ``retriever.invoke(question, k=3)``. score_threshold: least cosine, -1 to 1.
    order: ``best-first``, as retrievers have it; ``best-last`` for a chain that puts the documents before the
    question as they come, where the best one then stands next to it; or ``document`` (see ragblend.BlendSettings);
    also for one call. But for ``best-first`` the metadata then have a ``relevance_score``, by which too many documents
    are left out.

    Raises ragblend.PathNotFoundError, ConfigError; when asked, LibraryError if nothing is indexed.
    """

    library: Library | str | Path = Field(exclude=True)
    k: int = Field(default=4, ge=1)
    score_threshold: float = Field(default=-1.0, ge=-1, le=1)
    order: ChunkOrder = "best-first"

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    _opened: Library = PrivateAttr()

    def model_post_init(self, _: Any, /) -> None:
        given = self.library
        self._opened = given if isinstance(given, Library) else Library.open(given, read_only=True)

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        order: ChunkOrder | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        if kwargs:
            raise ConfigError(f"unknown arguments: {', '.join(kwargs)}")
        hits = self._opened.search(query, self.k if k is None else k)
        order = self.order if order is None else order
        placed = [hit for hit in in_order(hits, order) if hit.score >= self.score_threshold]
        documents = [document_of(hit) for hit in placed]
        if order != "best-first":  # there the order tells, and equal documents stay equal for those who merge them
            for hit, document in zip(placed, documents, strict=True):
                document.metadata[RELEVANCE] = hit.score
        return documents

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        """On a thread, as a retriever without one does; that one takes no arguments for one call."""
        manager = run_manager.get_sync()
        return await run_in_executor(None, self._get_relevant_documents, query, run_manager=manager, **kwargs)

    def close(self) -> None:
        """Close the library."""
        self._opened.close()
