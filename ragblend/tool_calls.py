"""Tool calls in an answer's text.

Models whose chat template writes ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>`` (Hermes
and those that followed: Qwen2.5, Qwen3, SmolLM3, ...) answer in that form too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ragblend.errors import ConfigError

OPENING, CLOSING = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool that the model wants called, by name, and its arguments."""

    name: str
    arguments: dict[str, Any]


class ToolCallReader:
    """Splits an answer, piece by piece, into the text to show and the calls in it.

    Text that may be the beginning of a call is held back until it is clear. What stands between the
    marks without being a call is text like any other, marks included, so nothing is ever lost.
    ``calls`` grows as calls are complete.
    """

    def __init__(self) -> None:
        self.calls: list[ToolCall] = []
        self._held = ""

    def push(self, piece: str) -> str:
        """Take the answer's next piece; return the text that is certain to be no call."""
        self._held += piece
        certain = ""
        while OPENING in self._held and CLOSING in self._held.partition(OPENING)[2]:
            before, _, rest = self._held.partition(OPENING)
            written, _, self._held = rest.partition(CLOSING)
            certain += before + self._take(written, CLOSING)
        opened = self._held.find(OPENING)
        end = opened if opened >= 0 else len(self._held) - _begun(self._held)
        certain, self._held = certain + self._held[:end], self._held[end:]
        return certain

    def finish(self) -> str:
        """The rest of the text, once no more pieces come. A last call may lack its closing mark."""
        before, opening, written = self._held.partition(OPENING)
        self._held = ""
        return before + (self._take(written, "") if opening else "")

    def _take(self, written: str, closing: str) -> str:
        call = parse_tool_call(written)
        if call is None:
            return f"{OPENING}{written}{closing}"
        self.calls.append(call)
        return ""


def parse_tool_call(written: str) -> ToolCall | None:
    """The call that JSON text stands for, or None if it is none. Arguments may be JSON in a string."""
    try:
        call = json.loads(written)
        arguments = call.get("arguments", call.get("parameters", {}))
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        name = call["name"]
    except (ValueError, AttributeError, KeyError, RecursionError):
        return None
    return ToolCall(name, arguments) if isinstance(name, str) and isinstance(arguments, dict) else None


def json_grammar(schema: Mapping[str, Any]) -> str:
    """A grammar (``GenerationSettings.grammar``) whose only answers are JSON by ``schema``, without idle space.

    Where the schema does not say that an object may have more properties than it lists, it has no more.
    """
    return f"start: %json {json.dumps({**_closed(schema), 'x-guidance': {'whitespace_flexible': False}})}"


def _closed(schema: Any) -> Any:
    """``schema`` with every object held to its listed properties: a model might go on inventing others."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    closed = {name: _closed(value) for name, value in schema.items()}
    return {"additionalProperties": False, **closed} if isinstance(schema.get("properties"), Mapping) else closed


def tool_call_grammar(tools: Sequence[Mapping[str, Any]], tokenizer: Any) -> str:
    """A grammar (``GenerationSettings.grammar``) whose only answers are one call of one of ``tools``.

    tools: as chat templates take them, ``{"type": "function", "function": {"name": ..., "parameters":
    <JSON schema>}}``. tokenizer: of the model that answers. Raises ConfigError if there are no tools.
    """
    if not tools:
        raise ConfigError("a tool call is required, but there are no tools: give at least one")
    names = [f"call_{number}" for number in range(len(tools))]
    # A mark that is a token of its own is named without quotes: spelt out, its characters would be other tokens.
    tokens = tokenizer.get_added_vocab()
    opening, closing = (mark if mark in tokens else json.dumps(mark) for mark in (OPENING, CLOSING))
    lines = [f'start: {opening} "\\n" ({" | ".join(names)}) "\\n" {closing}']
    lines += [
        json_grammar(_call_schema(tool)).replace("start", name, 1) for name, tool in zip(names, tools, strict=True)
    ]
    return "\n".join(lines)


def _call_schema(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = tool["function"]
    arguments = dict(function.get("parameters") or {"type": "object"})
    # References point from the root of the schema, so definitions move there.
    definitions = {name: arguments.pop(name) for name in ("$defs", "definitions") if name in arguments}
    return {
        "type": "object",
        "properties": {"name": {"const": function["name"]}, "arguments": arguments},
        "required": ["name", "arguments"],
        **definitions,
    }


def _begun(text: str) -> int:
    """Length of the longest tail of ``text`` that begins the opening mark."""
    longest = min(len(text), len(OPENING) - 1)
    return next((length for length in range(longest, 0, -1) if OPENING.startswith(text[-length:])), 0)
