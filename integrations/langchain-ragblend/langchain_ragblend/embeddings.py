"""Embeddings: ragblend's for LangChain, and LangChain's for a ragblend library."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from langchain_core.embeddings import Embeddings
from pydantic import BaseModel, ConfigDict, PrivateAttr

from ragblend import SentenceEmbedder
from ragblend.errors import LibraryError


class RagBlendEmbeddings(BaseModel, Embeddings):
    """Sentence embeddings as a ragblend library makes them, for use in any vector store.

    .. code-block:: python

        embeddings = RagBlendEmbeddings()  # the embedded all-MiniLM-L6-v2, 384 dimensions
        embeddings.embed_query("How long is the warranty?")

    model: the folder of a sentence-transformers model; None for the embedded one. device: None for the best
    there is. Vectors have length 1. Raises ragblend.ModelError where the folder holds no model.
    """

    model: str | Path | None = None
    device: str | None = None

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    _embedder: SentenceEmbedder = PrivateAttr()

    def model_post_init(self, _: Any, /) -> None:
        self._embedder = SentenceEmbedder(self.model, device=self.device)

    @property
    def embedder(self) -> SentenceEmbedder:
        """The same embedder for ``ragblend.Library.open(embedder=...)``."""
        return self._embedder

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return self._embedder.embed_chunks(texts).tolist() if texts else []

    def embed_query(self, text: str) -> list[float]:
        return [float(value) for value in self._embedder.embed_question(text)]


class LangChainEmbedder:
    """LangChain embeddings in the place of a library's embedder.

    Known by their class, the name of their model where they tell it, and the length of their vectors: what else
    may have changed about them a library cannot notice.
    """

    def __init__(self, embeddings: Embeddings) -> None:
        self.embeddings = embeddings

    @property
    def name(self) -> str:
        model = next((str(each) for key in _MODEL_NAMES if (each := getattr(self.embeddings, key, None))), "")
        return f"{type(self.embeddings).__qualname__}({model})"

    @cached_property
    def digest(self) -> str:
        parts = (type(self.embeddings).__module__, self.name, str(len(self.embed_question("length"))))
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def embed_chunks(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        return _unit(np.asarray(self.embeddings.embed_documents(list(texts)), np.float32))

    def embed_question(self, text: str) -> npt.NDArray[np.float32]:
        (vector,) = _unit(np.asarray(self.embeddings.embed_query(text), np.float32)[None])
        return np.asarray(vector, np.float32)


def embedder_of(embeddings: Embeddings) -> SentenceEmbedder | LangChainEmbedder:
    """What a library embeds with when it is given ``embeddings``."""
    return embeddings.embedder if isinstance(embeddings, RagBlendEmbeddings) else LangChainEmbedder(embeddings)


_MODEL_NAMES = ("model_name", "model", "model_id", "deployment", "repo_id")


def _unit(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not (np.isfinite(lengths).all() and lengths.all()):
        raise LibraryError("the embeddings gave a vector of zeros or of no numbers: check the embedding model")
    return np.asarray(vectors / lengths, np.float32)
