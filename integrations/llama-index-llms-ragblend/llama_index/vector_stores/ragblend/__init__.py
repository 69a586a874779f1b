"""LlamaIndex's vector store on a ragblend library: nodes, vectors and KV in one folder."""

from llama_index.vector_stores.ragblend.base import RagBlendVectorStore

__all__ = ["RagBlendVectorStore"]
