"""LlamaIndex's retriever over the documents of a ragblend library."""

from llama_index.retrievers.ragblend.base import RagBlendRetriever

__all__ = ["RagBlendRetriever"]
