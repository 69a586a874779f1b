"""A response synthesizer that keeps nodes apart, each with its own KV."""

from llama_index.response_synthesizers.ragblend.base import RagBlendSynthesizer

__all__ = ["RagBlendSynthesizer"]
