"""Nodes in a library, each with its vector and with the KV of the text that the LLM will receive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.indices.query.embedding_utils import get_top_k_mmr_embeddings
from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
    VectorStoreQueryResult,
)
from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict

from llama_index.llms.ragblend import RagBlend
from llama_index.llms.ragblend.base import library_of
from llama_index.llms.ragblend.precompute import document_of, llm_text
from llama_index.vector_stores.ragblend.filters import matches
from ragblend import Engine, Hit, Library, TextDocument
from ragblend.errors import ConfigError

_MMR_PREFETCH_FACTOR = 4.0


class RagBlendVectorStore(BasePydanticVectorStore):
    """A vector store whose nodes are prefilled when they are added, so that the first question reuses them.

    ```python
    llm = RagBlend(library="handbook.rag")
    storage = StorageContext.from_defaults(vector_store=RagBlendVectorStore(llm))
    index = VectorStoreIndex.from_documents(documents, storage_context=storage)
    ```

    library: the RagBlend that will answer, or its library, or the folder of one.
    engine, model: what to prefill with, where a folder is given.

    pieces: nodes in a row of the same document (``ref_doc_id``) in one call of ``add`` are pieces of it, and each is
        prefilled behind those before it; else each alone, which takes less work and stays further from full prefill.

    Everything is on disk when ``add`` and ``delete`` return; ``persist`` has nothing left to do, and
    ``VectorStoreIndex.from_vector_store`` opens the same nodes again. Vectors come from the index's
    embedding model, the same for the whole library. Deleting a node deletes the KV nobody else needs.
    """

    stores_text: bool = True

    _library: Library = PrivateAttr()
    _pieces: bool = PrivateAttr()

    def __init__(
        self,
        library: RagBlend | Library | str | Path,
        *,
        engine: Engine | None = None,
        model: str | Path | None = None,
        pieces: bool = True,
    ) -> None:
        super().__init__(stores_text=True)
        self._library = library_of(library, engine=engine, model=model)
        self._pieces = pieces

    @classmethod
    def class_name(cls) -> str:
        return "RagBlendVectorStore"

    @property
    def client(self) -> Library:
        return self._library

    def add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """Add or replace nodes. Raises ConfigError for one without embedding or text."""
        self._library.texts.add(_document(node, self._pieces) for node in nodes)
        return [node.node_id for node in nodes]

    def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """Delete the nodes of a document."""
        self._library.texts.remove(text.id for text in self._texts() if text.metadata["ref_doc_id"] == ref_doc_id)

    def delete_nodes(
        self,
        node_ids: list[str] | None = None,
        filters: MetadataFilters | None = None,
        **delete_kwargs: Any,
    ) -> None:
        """Delete the nodes with these ids that pass the filters; without ids, all that pass."""
        self._library.texts.remove(text.id for text in self._texts(node_ids, filters))

    def clear(self) -> None:
        """Delete all nodes. Documents and texts that others keep in the library stay."""
        self.delete_nodes()

    def get_nodes(self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None) -> list[BaseNode]:
        """The nodes with these ids that pass the filters; without ids, all that pass."""
        return [metadata_dict_to_node(dict(text.metadata)) for text in self._texts(node_ids, filters)]

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """The nearest nodes by cosine, or by maximal marginal relevance (mode ``mmr``).

        For MMR: mmr_threshold from 0 (all different) to 1 (nearest only), mmr_prefetch_factor or
        mmr_prefetch_k for how many candidates are looked at. Raises ConfigError for other modes.
        """
        if query.query_embedding is None:
            raise ConfigError("the query has no embedding: set the index's embed_model")
        if query.mode not in (VectorStoreQueryMode.DEFAULT, VectorStoreQueryMode.MMR):
            raise ConfigError(f"query mode {query.mode.value!r} is not supported: use 'default' or 'mmr'")
        count = query.similarity_top_k
        if query.mode == VectorStoreQueryMode.MMR:
            factor = kwargs.get("mmr_prefetch_factor", _MMR_PREFETCH_FACTOR)
            count = int(kwargs.get("mmr_prefetch_k", count * factor))
        hits = self._library.search_vector(query.query_embedding, count, where=_passes(query))
        if query.mode == VectorStoreQueryMode.MMR:
            threshold = query.mmr_threshold if query.mmr_threshold is not None else kwargs.get("mmr_threshold")
            return _result(*_diverse(query, hits, threshold))
        return _result(hits, [hit.score for hit in hits])

    async def async_add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        return await asyncio.to_thread(self.add, nodes, **kwargs)

    async def adelete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        await asyncio.to_thread(self.delete, ref_doc_id, **delete_kwargs)

    async def adelete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **delete_kwargs: Any
    ) -> None:
        await asyncio.to_thread(self.delete_nodes, node_ids, filters, **delete_kwargs)

    async def aclear(self) -> None:
        await asyncio.to_thread(self.clear)

    async def aget_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> list[BaseNode]:
        return await asyncio.to_thread(self.get_nodes, node_ids, filters)

    async def aquery(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        return await asyncio.to_thread(self.query, query, **kwargs)

    def _texts(
        self, node_ids: Iterable[str] | None = None, filters: MetadataFilters | None = None
    ) -> list[TextDocument]:
        texts = self._library.texts
        found = texts.get(texts.ids() if node_ids is None else list(node_ids))
        return [text for text in found if "_node_content" in text.metadata and matches(filters, text.metadata)]


def _document(node: BaseNode, pieces: bool) -> TextDocument:
    if node.embedding is None:
        raise ConfigError(f"node {node.node_id!r} has no embedding: add nodes through a VectorStoreIndex")
    document = document_of(node, pieces)
    return TextDocument(node.node_id, llm_text(node), node_to_metadata_dict(node), node.embedding, document=document)


def _passes(query: VectorStoreQuery) -> Callable[[Hit], bool]:
    """What a hit must fulfil: a node, and all that the query asks for besides nearness.

    An index over a store that keeps text asks for node_ids [], and means any.
    """

    def passes(hit: Hit) -> bool:
        metadata = hit.metadata or {}
        return (
            "_node_content" in metadata
            and (not query.node_ids or hit.source.document in query.node_ids)
            and (not query.doc_ids or metadata["ref_doc_id"] in query.doc_ids)
            and matches(query.filters, metadata)
        )

    return passes


def _diverse(query: VectorStoreQuery, hits: Sequence[Hit], threshold: float | None) -> tuple[list[Hit], list[float]]:
    """The hits that MMR picks, in its order, and their scores in it."""
    scores, places = get_top_k_mmr_embeddings(
        query.query_embedding or [],
        [hit.embedding.tolist() for hit in hits],
        similarity_top_k=query.similarity_top_k,
        embedding_ids=list(range(len(hits))),
        mmr_threshold=threshold,
    )
    return [hits[place] for place in places], list(scores)


def _result(hits: Sequence[Hit], scores: list[float]) -> VectorStoreQueryResult:
    nodes = [metadata_dict_to_node(dict(hit.metadata or {})) for hit in hits]
    return VectorStoreQueryResult(nodes=nodes, similarities=scores, ids=[node.node_id for node in nodes])
