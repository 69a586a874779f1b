"""Tools for the chat template, and which of them an answer is forced to call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from ragblend import Engine
from ragblend.errors import ConfigError

Tool = dict[str, Any] | type | Callable[..., Any] | BaseTool


def require_tools(engine: Engine) -> None:
    """Raise NotImplementedError unless the model's chat template takes tools and writes calls as we read them."""
    if not engine.supports_tools:
        raise NotImplementedError(
            f"the chat template of {engine.name} has no tools: use a model whose template has, for example Qwen2.5"
        )
    if "<tool_call>" not in str(engine.tokenizer.chat_template):
        raise NotImplementedError(
            f"the chat template of {engine.name} does not write tool calls as JSON between <tool_call> marks, "
            "the only form that can be read: use a model whose template does, for example Qwen2.5"
        )


def schemas_of(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Tools as the template wants them."""
    return [convert_to_openai_tool(tool) for tool in tools]


def forced_tools(tools: Sequence[Mapping[str, Any]], choice: Any) -> list[Mapping[str, Any]]:
    """The tools of which one must be called: none, all or the one that ``choice`` names. Raises ConfigError."""
    if choice is None or choice is False or choice in ("auto", "none"):
        return []
    if choice is True or choice in ("any", "required"):
        return list(tools)
    name = choice.get("function", choice).get("name") if isinstance(choice, Mapping) else choice
    chosen = [tool for tool in tools if tool["function"]["name"] == name]
    if not chosen:
        names = ", ".join(tool["function"]["name"] for tool in tools)
        raise ConfigError(f"tool_choice {choice!r} is none of the tools ({names}), 'auto', 'any' or 'none'")
    return chosen
