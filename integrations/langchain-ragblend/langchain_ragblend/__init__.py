"""LangChain on ragblend: the KV cache of each document is computed once."""

from langchain_ragblend.chat_models import ChatRagBlend
from langchain_ragblend.document_transformers import PrecomputeKV
from langchain_ragblend.embeddings import RagBlendEmbeddings
from langchain_ragblend.llms import RagBlendLLM
from langchain_ragblend.retrievers import RagBlendRetriever
from langchain_ragblend.vectorstores import RagBlendVectorStore

__all__ = [
    "ChatRagBlend",
    "PrecomputeKV",
    "RagBlendEmbeddings",
    "RagBlendLLM",
    "RagBlendRetriever",
    "RagBlendVectorStore",
]
