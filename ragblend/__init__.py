"""Retrieval-augmented generation in which every document chunk is prefilled once.

The public names, each loaded when it is first used: importing ragblend loads neither torch nor a model.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ragblend.answer import AnswerStream
    from ragblend.config import (
        BlendSettings,
        ChunkSettings,
        DiskLimits,
        GenerationSettings,
        PrefixSettings,
        ReuseSettings,
        StoreSettings,
    )
    from ragblend.engine import Engine
    from ragblend.errors import RagblendError
    from ragblend.library.embedding import SentenceEmbedder
    from ragblend.library.library import Library
    from ragblend.library.report import Hit, PrecomputeReport
    from ragblend.library.texts import TextDocument
    from ragblend.prefix.names import NamedCache
    from ragblend.prompt import CachePoint, Message, Passage, Prompt, Segment
    from ragblend.results import Answer, CachePointUse, Source, Timings, Usage
    from ragblend.store.memory import MemoryStore
    from ragblend.store.metrics import StoreMetrics
    from ragblend.tool_calls import ToolCall, ToolCallReader, json_grammar, tool_call_grammar
    from ragblend.usage import CostReport, Prices, anthropic_usage, gemini_usage, openai_usage, ragblend_usage

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "AnswerStream",
    "BlendSettings",
    "CachePoint",
    "CachePointUse",
    "ChunkSettings",
    "CostReport",
    "DiskLimits",
    "Engine",
    "GenerationSettings",
    "Hit",
    "Library",
    "MemoryStore",
    "Message",
    "NamedCache",
    "Passage",
    "PrecomputeReport",
    "PrefixSettings",
    "Prices",
    "Prompt",
    "RagblendError",
    "ReuseSettings",
    "Segment",
    "SentenceEmbedder",
    "Source",
    "StoreMetrics",
    "StoreSettings",
    "TextDocument",
    "Timings",
    "ToolCall",
    "ToolCallReader",
    "Usage",
    "anthropic_usage",
    "gemini_usage",
    "json_grammar",
    "openai_usage",
    "ragblend_usage",
    "tool_call_grammar",
]

_HOMES = {
    "answer": ("AnswerStream",),
    "config": (
        "BlendSettings",
        "ChunkSettings",
        "DiskLimits",
        "GenerationSettings",
        "PrefixSettings",
        "ReuseSettings",
        "StoreSettings",
    ),
    "engine": ("Engine",),
    "errors": ("RagblendError",),
    "library.embedding": ("SentenceEmbedder",),
    "library.library": ("Library",),
    "library.report": ("Hit", "PrecomputeReport"),
    "library.texts": ("TextDocument",),
    "prefix.names": ("NamedCache",),
    "prompt": ("CachePoint", "Message", "Passage", "Prompt", "Segment"),
    "results": ("Answer", "CachePointUse", "Source", "Timings", "Usage"),
    "store.memory": ("MemoryStore",),
    "usage": ("CostReport", "Prices", "anthropic_usage", "gemini_usage", "openai_usage", "ragblend_usage"),
    "store.metrics": ("StoreMetrics",),
    "tool_calls": ("ToolCall", "ToolCallReader", "json_grammar", "tool_call_grammar"),
}
_HOME = {name: f"ragblend.{home}" for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'ragblend' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
