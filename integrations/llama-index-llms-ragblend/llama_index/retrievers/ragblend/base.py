"""Chunks of a library that was indexed by ``ragblend index`` or ``Library.add``, as nodes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import NodeRelationship, NodeWithScore, QueryBundle, RelatedNodeInfo, TextNode

from llama_index.llms.ragblend import RagBlend
from ragblend import Library, Source
from ragblend.config import ChunkOrder, require_order
from ragblend.errors import ConfigError
from ragblend.library.order import in_order

_LABEL = "label"


class RagBlendRetriever(BaseRetriever):
    """The ``similarity_top_k`` chunks of ``library`` nearest to a question.

    The LLM receives each node exactly as its KV was computed at indexing, title line included, so a
    RagBlend on the same library reuses it from the first question on.

    library: a RagBlend, an open library, or the folder of one (opened for reading). order: ``best-first``, as
    retrievers have it; ``best-last`` where the nodes go before the question as they come, so that the best one stands
    next to it; or ``document`` (see ragblend.BlendSettings).
    Raises PathNotFoundError, ConfigError (similarity_top_k below 1, an unknown order); LibraryError while nothing is
    indexed.
    """

    def __init__(
        self,
        library: RagBlend | Library | str | Path,
        *,
        similarity_top_k: int = 6,
        order: ChunkOrder = "best-first",
        **kwargs: Any,
    ) -> None:
        if similarity_top_k < 1:
            raise ConfigError(f"similarity_top_k must be at least 1, got {similarity_top_k}")
        require_order(order)
        if isinstance(library, RagBlend):
            library = library.library
        self._library = Library.open(library, read_only=True) if isinstance(library, str | Path) else library
        self._similarity_top_k = similarity_top_k
        self._order = order
        super().__init__(**kwargs)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        hits = self._library.search(query_bundle.query_str, self._similarity_top_k)
        placed = in_order(hits, self._order)
        return [NodeWithScore(node=_node(hit.source), score=hit.source.score) for hit in placed]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await asyncio.to_thread(self._retrieve, query_bundle)


def _node(source: Source) -> TextNode:
    """A chunk whose content for the LLM is the text that was prefilled; its metadata are for people."""
    label = " > ".join(part for part in (source.title, source.heading) if part)
    metadata: dict[str, Any] = {
        "document": source.document,
        "chunk": source.chunk,
        "title": source.title,
        "heading": source.heading,
        **({_LABEL: label} if label else {}),
    }
    return TextNode(
        id_=f"{source.document}#{source.chunk}",
        text=source.text.strip(),
        metadata=metadata,
        excluded_llm_metadata_keys=[key for key in metadata if key != _LABEL],
        excluded_embed_metadata_keys=[key for key in metadata if key != _LABEL],
        metadata_template="[{value}]",
        text_template="{metadata_str}\n{content}",
        relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=source.document)},
    )
