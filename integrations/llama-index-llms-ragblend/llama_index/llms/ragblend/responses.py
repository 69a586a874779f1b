"""ragblend's answers as LlamaIndex's responses."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any
from uuid import uuid4

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CompletionResponse,
    ContentBlock,
    MessageRole,
    TextBlock,
    ToolCallBlock,
)

from ragblend import Answer, ToolCall, ToolCallReader, openai_usage


def raw_answer(answer: Answer) -> dict[str, Any]:
    """What ``response.raw`` holds: ``usage`` as the token counter reads it, what was reused, and timings in seconds."""
    return {
        "usage": {**asdict(answer.usage), **openai_usage(answer.usage)},
        "hits": answer.hits,
        "misses": answer.misses,
        "matched_tokens": answer.matched_tokens,
        "prefix_tokens": answer.prefix_tokens,
        "cache_points": [asdict(point) for point in answer.cache_points],
        "learning": answer.learning,
        "timings": asdict(answer.timings),
        "policy": answer.policy,
        "ratio": answer.ratio,
        "model": answer.model,
        "finish_reason": answer.finish_reason,
        "dropped": [source.document for source in answer.dropped],
    }


class ChatResponses:
    """Builds the responses of one chat: after each piece of text, and at its end.

    tools: whether the answer may hold tool calls, which are then taken out of its text.
    """

    def __init__(self, *, tools: bool) -> None:
        self._reader = ToolCallReader() if tools else None
        self._calls: list[ToolCallBlock] = []
        self._text = ""

    def after(self, piece: str) -> ChatResponse:
        return self._response(self._reader.push(piece) if self._reader else piece)

    def at_end(self, answer: Answer) -> ChatResponse:
        """The last response, with ``raw``. Its delta is text that was held back until now."""
        response = self._response(self._reader.finish() if self._reader else "")
        response.raw = raw_answer(answer)
        return response

    def whole(self, answer: Answer) -> ChatResponse:
        """The one response to an answer that was not streamed."""
        self.after(answer.text)
        response = self.at_end(answer)
        response.delta = None
        return response

    def _response(self, delta: str) -> ChatResponse:
        self._text += delta
        calls = self._reader.calls if self._reader else []
        self._calls += [_call_block(call) for call in calls[len(self._calls) :]]
        blocks: list[ContentBlock] = [TextBlock(text=self._text), *self._calls]
        return ChatResponse(message=ChatMessage(role=MessageRole.ASSISTANT, blocks=blocks), delta=delta)


class CompletionResponses:
    """Builds the responses of one completion: after each piece of text, and at its end."""

    def __init__(self) -> None:
        self._text = ""

    def after(self, piece: str) -> CompletionResponse:
        self._text += piece
        return CompletionResponse(text=self._text, delta=piece)

    def at_end(self, answer: Answer) -> CompletionResponse:
        return CompletionResponse(text=self._text, delta="", raw=raw_answer(answer))

    def whole(self, answer: Answer) -> CompletionResponse:
        return CompletionResponse(text=answer.text, raw=raw_answer(answer))


def _call_block(call: ToolCall) -> ToolCallBlock:
    return ToolCallBlock(tool_call_id=f"call_{uuid4().hex[:12]}", tool_name=call.name, tool_kwargs=call.arguments)
