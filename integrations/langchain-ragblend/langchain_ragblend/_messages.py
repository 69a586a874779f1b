"""LangChain's messages as ragblend's, documents kept apart as passages."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, ChatMessage, HumanMessage, SystemMessage, ToolMessage

from langchain_ragblend._documents import passages_of
from ragblend import CachePoint, Message, Passage
from ragblend.errors import ConfigError

Part = str | Passage | CachePoint

INTRODUCTION = "Documents:\n\n"
# Blocks of an answer that stand for what is not its text.
_NOT_TEXT = {"tool_use", "tool_call", "tool_call_chunk", "invalid_tool_call", "function_call", "thinking", "reasoning"}


def messages_of(messages: Iterable[BaseMessage], documents: Any, system: str | None) -> list[Message]:
    """What is sent to the library. documents: stand before the last user message's text.

    system: the engine's own, put first where documents are passed and no message is from the system: chunks
    were prefilled behind it. None where something else comes first. Raises ConfigError for what is no text or no
    document.
    """
    converted = [_message(message) for message in messages]
    if documents is not None:
        converted = _with_documents(converted, passages_of(documents))
    without_system = all(message.role != "system" for message in converted)
    if system is not None and without_system and any(map(_begins_with_documents, converted)):
        converted.insert(0, Message("system", (system,)))
    return converted


def _message(message: BaseMessage) -> Message:
    content = (*_parts(message.content), *_cache_point(message.additional_kwargs))
    match message:
        case HumanMessage():
            documents = message.additional_kwargs.get("documents")
            if documents is not None:
                content = (INTRODUCTION, *passages_of(documents), *content)
            return Message("user", content, _name(message))
        case SystemMessage():
            return Message("system", content)
        case AIMessage():
            return Message("assistant", content, _tool_calls(message))
        case ToolMessage():
            answered = {"tool_call_id": message.tool_call_id, **_name(message)}
            return Message("tool", _marked(content, message.artifact), answered)
        case ChatMessage():
            return Message(message.role, content)
    raise ConfigError(f"a {type(message).__name__} cannot be part of a chat: give system, human, AI or tool messages")


def _parts(content: Any) -> Iterator[Part]:
    blocks = [content] if isinstance(content, str) else content
    for block in blocks:
        if isinstance(block, str):
            yield block
        elif block.get("type") == "text":
            yield str(block["text"])
        elif block.get("type") == "text-plain":
            yield _passage(block)
        elif block.get("type") not in _NOT_TEXT:
            raise ConfigError(f"content of type {block.get('type')!r} cannot be read: the model reads text only")
        if isinstance(block, Mapping):
            yield from _cache_point(block)


def _cache_point(given: Mapping[str, Any]) -> Iterator[CachePoint]:
    """What hosted APIs' users write on blocks and messages: ``cache_control={"type": "ephemeral", "ttl": "1h"}``."""
    if given.get("cache_control") is not None:
        yield CachePoint.of(given["cache_control"])


def _passage(block: Mapping[str, Any]) -> Passage:
    text = block.get("text")
    if text is None and block.get("base64") is not None:
        try:
            text = base64.b64decode(block["base64"], validate=True).decode()
        except (binascii.Error, UnicodeDecodeError) as error:
            raise ConfigError(f"a text-plain block is not text in base64 ({error})") from error
    if not isinstance(text, str):
        raise ConfigError("a text-plain block has no text: nothing is fetched by url or file id, read it first")
    if not text.strip():
        raise ConfigError("a text-plain block is empty: leave it out")
    return Passage(text=text, title=str(block.get("title") or ""), document=str(block.get("context") or ""))


def _with_documents(messages: Sequence[Message], passages: Sequence[Passage]) -> list[Message]:
    last = max((index for index, message in enumerate(messages) if message.role == "user"), default=None)
    if last is None:
        raise ConfigError("documents are given, but there is no user message that asks about them")
    asked = messages[last]
    placed = Message(asked.role, (INTRODUCTION, *passages, *asked.content), asked.extra)
    return [*messages[:last], placed, *messages[last + 1 :]]


def _begins_with_documents(message: Message) -> bool:
    return message.role == "user" and message.content[:1] == (INTRODUCTION,)


def _marked(content: tuple[Part, ...], artifact: Any) -> tuple[Part, ...]:
    """The documents of a retriever tool as passages, where its text is these documents and nothing else.

    Other text of tools stays as it is, and is searched for known texts like all text.
    """
    documents = [each for each in artifact if isinstance(each, Document)] if isinstance(artifact, list | tuple) else []
    if not documents or len(documents) != len(artifact) or not all(isinstance(part, str) for part in content):
        return content
    cursor, text = 0, "".join(map(str, content))
    for document in documents:
        wanted = document.page_content.strip()
        at = text.find(wanted, cursor)
        if not wanted or at < 0 or text[cursor:at].strip():
            return content
        cursor = at + len(wanted)
    return content if text[cursor:].strip() else passages_of(documents)


def _tool_calls(message: AIMessage) -> dict[str, Any]:
    if not message.tool_calls:
        return {}
    calls = [
        {"type": "function", "id": call["id"], "function": {"name": call["name"], "arguments": call["args"]}}
        for call in message.tool_calls
    ]
    return {"tool_calls": calls}


def _name(message: BaseMessage) -> dict[str, Any]:
    return {"name": message.name} if message.name else {}
