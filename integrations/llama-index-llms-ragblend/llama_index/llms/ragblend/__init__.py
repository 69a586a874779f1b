"""LlamaIndex's LLM on ragblend, the transformation that precomputes chunk KV, and a log of what was reused."""

from llama_index.llms.ragblend.base import RagBlend
from llama_index.llms.ragblend.precompute import PrecomputeKV
from llama_index.llms.ragblend.reuse_log import ReuseLog

__all__ = ["PrecomputeKV", "RagBlend", "ReuseLog"]
