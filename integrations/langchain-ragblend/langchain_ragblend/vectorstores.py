"""A vector store whose documents have their KV computed when they are added."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore
from langchain_core.vectorstores.utils import maximal_marginal_relevance

from langchain_ragblend._documents import SOURCE, PieceOf, document_of, namer
from langchain_ragblend.embeddings import RagBlendEmbeddings, embedder_of
from ragblend import Engine, Hit, Library, TextDocument
from ragblend.errors import ConfigError

Filter = Mapping[str, Any] | Callable[[Document], bool]


class RagBlendVectorStore(VectorStore):
    """Documents with embeddings and chunk KV in one ragblend library.

    .. code-block:: python

        store = RagBlendVectorStore.from_documents(documents, library="docs.rag", engine=engine)
        llm = ChatRagBlend(library=store.library)  # answers from the KV computed just now

    library: an open Library (its embedder is used), or the folder of one (None: a temporary one), opened with
    ``engine`` (None: the embedded model) and ``embedding``. Files indexed into the library are found too.
    piece_of: as for ``PrecomputeKV``: what is added at once and in a row with the same ``source`` is of one document.
    filter, wherever it is taken: metadata that must be equal, or a condition on the document.

    Raises ragblend's errors: ConfigError (empty documents, metadata that is no JSON), LibraryMismatchError (made
    with another model or embedder), ...
    """

    def __init__(
        self,
        library: Library | str | Path | None = None,
        *,
        embedding: Embeddings | None = None,
        engine: Engine | None = None,
        namespace: str = "default",
        piece_of: PieceOf = SOURCE,
    ) -> None:
        self._name = namer(piece_of)
        if isinstance(library, Library):
            if embedding is not None or engine is not None or namespace not in ("default", library.namespace):
                raise ConfigError("an open library has its engine, namespace and embedder: give no others with it")
            self.library = library
            self._embeddings: Embeddings | None = None
        else:
            self._embeddings = embedding or RagBlendEmbeddings()
            embedder = embedder_of(self._embeddings)
            self.library = Library.open(library, engine=engine or Engine(), embedder=embedder, namespace=namespace)

    @property
    def embeddings(self) -> Embeddings | None:
        """None where the store was given an open library."""
        return self._embeddings

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: Sequence[Mapping[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Embed texts, compute their KV, and keep both. A text under a known id takes its place.

        Returns the ids, made up where none were given. batch_size: passed by LangChain's indexing; the library
        has batches of its own.
        """
        _refuse(kwargs)
        texts = list(texts)
        for name, values in (("metadatas", metadatas), ("ids", ids)):
            if values is not None and len(values) != len(texts):
                raise ConfigError(f"{len(texts)} texts but {len(values)} {name}: give one for each")
        named = [given or str(uuid.uuid4()) for given in ids or [None] * len(texts)]
        self.library.texts.add(map(self._text, named, texts, metadatas or [{}] * len(texts)))
        return named

    def delete(self, ids: Sequence[str] | None = None, **kwargs: Any) -> bool:
        """Remove documents with their KV, all if ``ids`` is None; unknown ids are ignored."""
        _refuse(kwargs)
        self.library.texts.remove(self.library.texts.ids() if ids is None else ids)
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Documents in the order of ``ids``; unknown ids are left out."""
        return [
            Document(id=text.id, page_content=text.text, metadata=dict(text.metadata))
            for text in self.library.texts.get(ids)
        ]

    def similarity_search(
        self, query: str, k: int = 4, *, filter: Filter | None = None, **kwargs: Any
    ) -> list[Document]:
        return [document for document, _ in self.similarity_search_with_score(query, k, filter=filter, **kwargs)]

    def similarity_search_with_score(
        self, query: str, k: int = 4, *, filter: Filter | None = None, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """Documents with the cosine of query and document, best first."""
        _refuse(kwargs)
        return _scored(self._search(self._embed(query), k, filter))

    def similarity_search_by_vector(
        self, embedding: Sequence[float], k: int = 4, *, filter: Filter | None = None, **kwargs: Any
    ) -> list[Document]:
        _refuse(kwargs)
        return [document_of(hit) for hit in self._search(embedding, k, filter)]

    def max_marginal_relevance_search(
        self,
        query: str,
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        *,
        filter: Filter | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        """The ``k`` of the ``fetch_k`` nearest that are near to the query and far from each other."""
        return self.max_marginal_relevance_search_by_vector(
            self._embed(query), k, fetch_k, lambda_mult, filter=filter, **kwargs
        )

    def max_marginal_relevance_search_by_vector(
        self,
        embedding: Sequence[float],
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        *,
        filter: Filter | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        _refuse(kwargs)
        hits = self._search(embedding, max(k, fetch_k), filter)
        vectors = [_listed(hit.embedding) for hit in hits]
        chosen = maximal_marginal_relevance(np.asarray(embedding, np.float32), vectors, lambda_mult, k) if hits else []
        return [document_of(hits[index]) for index in chosen]

    @classmethod
    def from_texts(
        cls,
        texts: Iterable[str],
        embedding: Embeddings | None = None,
        metadatas: Sequence[Mapping[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **kwargs: Any,
    ) -> RagBlendVectorStore:
        """A store with these texts in it. kwargs: library, engine, namespace, piece_of."""
        store = cls(embedding=embedding, **kwargs)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    def close(self) -> None:
        """Close the library; a temporary one is deleted."""
        self.library.close()

    def _text(self, id: str, text: str, metadata: Mapping[str, Any]) -> TextDocument:
        readable = isinstance(metadata, Mapping)  # what is not is refused by the library, in its words
        piece = Document(id=id, page_content=text, metadata=dict(metadata) if readable else {})
        return TextDocument(id, text, metadata, document=self._name(piece))

    def _embed(self, query: str) -> list[float]:
        return _listed(self.library.embed(query))

    def _search(self, vector: Sequence[float], k: int, filter: Filter | None) -> list[Hit]:
        return self.library.search_vector(vector, k, where=_condition(filter))

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        return lambda cosine: (1 + cosine) / 2


def _scored(hits: Iterable[Hit]) -> list[tuple[Document, float]]:
    return [(document_of(hit), hit.score) for hit in hits]


def _condition(filter: Filter | None) -> Callable[[Hit], bool] | None:
    if filter is None:
        return None
    if callable(filter):
        return lambda hit: bool(filter(document_of(hit)))
    if not isinstance(filter, Mapping):
        raise ConfigError(f"a filter is a dict of metadata or a function, not {type(filter).__name__}")
    wanted = dict(filter)
    return lambda hit: all(document_of(hit).metadata.get(key, _ABSENT) == value for key, value in wanted.items())


_ABSENT = object()


def _listed(vector: npt.NDArray[np.float32]) -> list[float]:
    return [float(value) for value in vector]


def _refuse(kwargs: Mapping[str, Any]) -> None:
    if kwargs:
        raise ConfigError(f"unknown arguments: {', '.join(kwargs)}")
