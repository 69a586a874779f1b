"""Prompts: segments, the templates that build them, and known texts found inside plain prompt text."""

from ragblend.prompt.conversation import CachePoint, Message, Passage
from ragblend.prompt.preamble import PREAMBLE
from ragblend.prompt.segments import Prompt, Segment, SegmentKind
from ragblend.prompt.template import DEFAULT_QUESTION, DEFAULT_SYSTEM, PromptTemplate, chunk_text

__all__ = [
    "DEFAULT_QUESTION",
    "DEFAULT_SYSTEM",
    "PREAMBLE",
    "CachePoint",
    "Message",
    "Passage",
    "Prompt",
    "PromptTemplate",
    "Segment",
    "SegmentKind",
    "chunk_text",
]
