"""Sentence embeddings without a network: all-MiniLM-L6-v2, or a sentence-transformers folder."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding, Embedding
from llama_index.core.bridge.pydantic import PrivateAttr

from ragblend import SentenceEmbedder


class RagBlendEmbedding(BaseEmbedding):
    """``Settings.embed_model = RagBlendEmbedding()``: vectors of length 1, texts of any length.

    folder: of a sentence-transformers model; None for the embedded one. device: None for the best.
    Raises ModelError where the folder holds no model.
    """

    _embedder: SentenceEmbedder = PrivateAttr()

    def __init__(self, folder: str | Path | None = None, *, device: str | None = None, **settings: Any) -> None:
        embedder = SentenceEmbedder(folder, device=device)
        super().__init__(**{"model_name": embedder.name, **settings})
        self._embedder = embedder

    @classmethod
    def class_name(cls) -> str:
        return "RagBlendEmbedding"

    def _get_query_embedding(self, query: str) -> Embedding:
        return list(map(float, self._embedder.embed_question(query)))

    def _get_text_embedding(self, text: str) -> Embedding:
        return self._get_text_embeddings([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[Embedding]:
        vectors: list[Embedding] = self._embedder.embed_chunks(texts).tolist()
        return vectors

    async def _aget_query_embedding(self, query: str) -> Embedding:
        return await asyncio.to_thread(self._get_query_embedding, query)

    async def _aget_text_embedding(self, text: str) -> Embedding:
        return await asyncio.to_thread(self._get_text_embedding, text)

    async def _aget_text_embeddings(self, texts: list[str]) -> list[Embedding]:
        return await asyncio.to_thread(self._get_text_embeddings, texts)
