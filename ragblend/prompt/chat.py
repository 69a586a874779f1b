"""Rendering a conversation by the tokenizer's chat template, with text and template kept apart.

The template is rendered once, with a placeholder in the place of each message's content, and split
there. So text from users and documents is never parsed for control tokens, and its pieces keep
their borders.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ragblend.config import require
from ragblend.errors import ConfigError
from ragblend.prompt.conversation import CachePoint, Message, Part, Passage

_BETWEEN_MERGED = "\n\n"


@dataclass(frozen=True, slots=True)
class TemplateText:
    """Text that the chat template wrote, in which control tokens are parsed."""

    text: str


Piece = TemplateText | str | Passage | CachePoint


class ChatTemplate:
    """A tokenizer's chat template, or a plain form of conversation where it has none."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    @cached_property
    def supports_tools(self) -> bool:
        """Whether the template shows tools to the model, by experiment."""
        name = f"probe_{secrets.token_hex(8)}"
        tool = {"type": "function", "function": {"name": name, "description": "", "parameters": {"type": "object"}}}
        if not self._has_template:
            return False
        try:
            return name in self._apply([{"role": "user", "content": "Hello"}], [tool])
        except Exception:  # a template that cannot take tools fails in its own way
            return False

    def render(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None = None) -> list[Piece]:
        """The conversation, and the beginning of the answer, in pieces.

        Where the template refuses a system message, or loses it, its text goes before the next user
        message; where it still refuses, neighbours of one role are merged. Raises ConfigError if the
        template takes none of these forms, or there are tools that it does not show to the model.
        """
        if not messages:
            raise ConfigError("a conversation needs at least one message")
        for message in messages:
            require(isinstance(message, Message), f"a conversation is made of Messages, not {type(message).__name__}")
        if tools and not self.supports_tools:
            raise ConfigError("this model's chat template has no place for tools: use another model, or no tools")
        if not self._has_template:
            return list(self._plain(messages))
        problem = ""
        for form in (_as_they_are, _system_in_user, _alternating):
            try:
                return self._split(form(messages), tools)
            except Exception as error:  # templates refuse each in their own way (gemma raises from Jinja)
                problem = problem or str(error)
        raise ConfigError(f"the model's chat template does not take this conversation: {problem}")

    def parse(self, prompt: str) -> list[Piece]:
        """A prompt that is already in the model's form: its control tokens apart from its text."""
        pieces: list[Piece] = []
        cursor = 0
        for found in self._control.finditer(prompt):
            pieces += [prompt[cursor : found.start()], TemplateText(found[0])]
            cursor = found.end()
        return [piece for piece in (*pieces, prompt[cursor:]) if piece != ""]

    @property
    def _has_template(self) -> bool:
        return getattr(self._tokenizer, "chat_template", None) is not None

    def _split(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None) -> list[Piece]:
        mark = secrets.token_hex(8)
        contents: list[list[Part]] = []
        turns = []
        for number, message in enumerate(messages):
            before, inner, after = _without_outer_space(message.content)
            contents.append(inner)
            content = f"{before}{mark}.{number}.{after}" if inner else before + after
            turns.append({**self._disarmed(dict(message.extra)), "role": message.role, "content": content})
        rendered = self._apply(turns, self._disarmed(list(tools)) if tools else None)
        texts = re.split(rf"{mark}\.(\d+)\.", rendered)
        shown = {int(number) for number in texts[1::2]}
        if lost := [m.role for n, m in enumerate(messages) if contents[n] and n not in shown]:
            raise ConfigError(f"it leaves out messages of the role {lost[0]}")
        pieces: list[Piece] = []
        for index, text in enumerate(texts):
            pieces += contents[int(text)] if index % 2 else [TemplateText(text)]
        return [piece for piece in pieces if piece not in ("", TemplateText(""))]

    def _plain(self, messages: Sequence[Message]) -> Iterator[Piece]:
        yield TemplateText(self._tokenizer.bos_token or "")
        for message in messages:
            if message.role == "assistant":
                yield "Answer: "
            yield from message.content
            yield "\n\n" if message.role == "system" else "\n"
        yield "Answer:"

    def _apply(self, turns: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> str:
        return str(self._tokenizer.apply_chat_template(turns, tools=tools, tokenize=False, add_generation_prompt=True))

    def _disarmed(self, value: Any) -> Any:
        """``value`` with its control tokens broken up: the template writes it among its own text."""
        if isinstance(value, str):
            return self._control.sub(lambda found: f"{found[0][0]}\u200b{found[0][1:]}", value)
        if isinstance(value, dict):
            return {self._disarmed(name): self._disarmed(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._disarmed(item) for item in value]
        return value

    @cached_property
    def _control(self) -> re.Pattern[str]:
        tokens = {token.content for token in self._tokenizer.added_tokens_decoder.values() if token.special}
        longest_first = sorted(tokens | set(self._tokenizer.all_special_tokens), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def _without_outer_space(content: tuple[Part, ...]) -> tuple[str, list[Part], str]:
    """Space before, what is inside, space behind: templates that trim see the space that they look for."""
    inner = list(content)
    before = after = ""
    shown = [index for index, part in enumerate(inner) if not isinstance(part, CachePoint)]
    if shown and isinstance(text := inner[shown[0]], str):
        inner[shown[0]] = stripped = text.lstrip()
        before = text[: len(text) - len(stripped)]
    if shown and isinstance(text := inner[shown[-1]], str):
        inner[shown[-1]] = stripped = text.rstrip()
        after = text[len(stripped) :]
    return before, [part for part in inner if part != ""] if shown else [], after


def _as_they_are(messages: Sequence[Message]) -> Sequence[Message]:
    return messages


def _system_in_user(messages: Sequence[Message]) -> list[Message]:
    """System text before the next user message, or in one of its own where none follows."""
    moved: list[Message] = []
    waiting: tuple[Part, ...] = ()
    for message in messages:
        if message.role == "system":
            waiting += (*message.content, _BETWEEN_MERGED)
        elif message.role == "user":
            moved.append(replace(message, content=(*waiting, *message.content)))
            waiting = ()
        else:
            moved.append(message)
    return [*moved, Message("user", waiting[:-1])] if waiting else moved


def _alternating(messages: Sequence[Message]) -> list[Message]:
    """Neighbours of one role in one message."""
    merged: list[Message] = []
    for message in _system_in_user(messages):
        if merged and merged[-1].role == message.role and not (message.extra or merged[-1].extra):
            content = (*merged[-1].content, _BETWEEN_MERGED, *message.content)
            merged[-1] = replace(message, content=content)
        else:
            merged.append(message)
    return merged
