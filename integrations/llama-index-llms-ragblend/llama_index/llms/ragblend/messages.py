"""LlamaIndex's chat messages as ragblend's: text is searched for known chunks, documents are chunks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from llama_index.core.base.llms.types import (
    CachePoint,
    ChatMessage,
    CitableBlock,
    CitationBlock,
    DocumentBlock,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)

from ragblend import CachePoint as RagblendCachePoint
from ragblend import Message, Passage
from ragblend.errors import ConfigError

_ROLES = {
    MessageRole.SYSTEM: "system",
    MessageRole.DEVELOPER: "system",
    MessageRole.USER: "user",
    MessageRole.ASSISTANT: "assistant",
    MessageRole.CHATBOT: "assistant",
    MessageRole.MODEL: "assistant",
    MessageRole.TOOL: "tool",
    MessageRole.FUNCTION: "tool",
}
# Nothing of these reaches the model: thoughts are not repeated.
_UNSAID = (ThinkingBlock, CitationBlock)

Part = str | Passage | RagblendCachePoint


class ScoredBlock(CitableBlock):
    """A passage with the score that it was found with: of too many the lowest are left out."""

    score: float = 0.0


def to_messages(messages: Sequence[ChatMessage]) -> list[Message]:
    """``messages`` for ``Library.chat``. Text blocks of one message are joined by a newline, as in ``content``.

    A CitableBlock, and a DocumentBlock of type text/plain, becomes a passage: one chunk of its own.
    Raises ConfigError for what is not text.
    """
    for message in messages:
        if not isinstance(message, ChatMessage):
            raise ConfigError(f"a chat is a list of ChatMessage, but it holds a {type(message).__name__}")
    return [_to_message(message) for message in messages]


def arguments(call: ToolCallBlock) -> dict[str, Any]:
    """What a tool was called with; some LLMs keep it as JSON in a string. Raises ConfigError for other text."""
    if not isinstance(call.tool_kwargs, str):
        return call.tool_kwargs
    try:
        return dict(json.loads(call.tool_kwargs))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"the arguments of the call of {call.tool_name!r} are no JSON object") from error


def _to_message(message: ChatMessage) -> Message:
    content: list[Part] = []
    before: Part | None = None  # the last part that is no cache point
    for part in _parts(message):
        if isinstance(part, str) and isinstance(before, str):
            part = f"{content.pop() if isinstance(content[-1], str) else ''}\n{part}"
        content.append(part)
        before = before if isinstance(part, RagblendCachePoint) else part
    return Message(_ROLES[message.role], tuple(content), _extra(message))


def _parts(message: ChatMessage) -> Iterator[Part]:
    for block in message.blocks:
        match block:
            case TextBlock():
                yield block.text
            case CitableBlock():
                score = block.score if isinstance(block, ScoredBlock) else 0.0
                yield Passage("\n\n".join(map(_text, block.content)), document=block.source, score=score)
            case DocumentBlock():
                yield Passage(_text(block), title=_title(block), document=str(block.path or block.url or ""))
            case CachePoint():
                control = block.cache_control
                yield RagblendCachePoint.of({"type": control.type, "ttl": control.ttl})
            case ToolCallBlock():
                pass  # goes to the chat template as the message's tool_calls
            case _ if not isinstance(block, _UNSAID):
                raise ConfigError(f"the model reads text only, but a message holds a {type(block).__name__}")


def _text(block: Any) -> str:
    if isinstance(block, TextBlock):
        return block.text
    if isinstance(block, DocumentBlock) and (block.document_mimetype or "").startswith("text/"):
        try:
            return bytes(block.resolve_document().read()).decode()
        except UnicodeDecodeError as error:
            raise ConfigError(f"the document {_title(block)!r} is not UTF-8 text: convert it first") from error
    kind = getattr(block, "document_mimetype", None) or type(block).__name__
    raise ConfigError(f"the model reads text only, but a document is of type {kind}: extract its text first")


def _title(block: DocumentBlock) -> str:
    return "" if block.title in (None, "input_document") else str(block.title)


def _extra(message: ChatMessage) -> dict[str, Any]:
    """What the chat template takes besides role and content."""
    extra: dict[str, Any] = {}
    if calls := [block for block in message.blocks if isinstance(block, ToolCallBlock)]:
        extra["tool_calls"] = [
            {
                "id": call.tool_call_id or "",
                "type": "function",
                "function": {"name": call.tool_name, "arguments": given},
            }
            for call, given in zip(calls, map(arguments, calls), strict=True)
        ]
    for name in ("tool_call_id", "name"):
        if name in message.additional_kwargs:
            extra[name] = message.additional_kwargs[name]
    return extra
