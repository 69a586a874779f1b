"""LlamaIndex embeddings by the model that ragblend embeds its own chunks with."""

from llama_index.embeddings.ragblend.base import RagBlendEmbedding

__all__ = ["RagBlendEmbedding"]
