"""The LLM that LlamaIndex's engines, agents and programs call."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, cast

from llama_index.core.base.llms.generic_utils import messages_to_prompt as default_messages_to_prompt
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseAsyncGen,
    CompletionResponseGen,
    LLMMetadata,
    MessageRole,
    ToolCallBlock,
)
from llama_index.core.bridge.pydantic import Field, PrivateAttr
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection, default_completion_to_prompt
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools.types import BaseTool
from llama_index.core.types import Model

from llama_index.llms.ragblend.messages import arguments, to_messages
from llama_index.llms.ragblend.opening import Learn, engine_of, open_library
from llama_index.llms.ragblend.responses import ChatResponses, CompletionResponses
from llama_index.llms.ragblend.running import async_pieces, pieces, whole
from ragblend import AnswerStream, BlendSettings, Engine, GenerationSettings, Library, json_grammar, tool_call_grammar
from ragblend.errors import ConfigError

_GENERATION = ("max_tokens", "temperature", "top_p", "top_k", "repetition_penalty", "seed", "stop", "grammar")
_BLENDING = ("policy", "ratio", "overflow")
_SETTINGS = (*_GENERATION, *_BLENDING, "cached_content")


class RagBlend(FunctionCallingLLM):
    """An LLM that reuses the KV cache of every text it has read before, wherever that stands in the prompt.

    ```python
    llm = RagBlend(library="handbook.rag")
    query_engine = VectorStoreIndex.from_documents(documents).as_query_engine(llm=llm)
    ```

    model: a transformers id, a folder, a ``.gguf`` file; None for the embedded default.
    library: where KV is kept, a folder or an open ``ragblend.Library``; None for a temporary folder.
    engine: a loaded ``ragblend.Engine`` to share, instead of ``model``.
    learn: what is precomputed in the background for the next question: ``paragraphs`` of the prompt
        (the default), ``passages`` given as documents, or nothing (``off``).
    policy, ratio, overflow: how KV is blended (None: the engine's own setting).
    cached_content: a named cache (``engine.caches.create``) that prompts go on from, by its name or id.

    ``close`` it, or use it in ``with``: that stops background work and removes a temporary library.

    Raises ragblend's errors: ConfigError (a bad setting), ModelError, PathNotFoundError, ...
    """

    max_tokens: int = Field(default=256, description="Longest answer in tokens.")
    temperature: float = Field(default=0.0, description="0 is greedy.")
    top_p: float = Field(default=1.0, description="Nucleus sampling; 1 switches it off.")
    top_k: int = Field(default=0, description="Sample among the k best tokens; 0 switches it off.")
    repetition_penalty: float = Field(default=1.0, description="Above 1 discourages repetition.")
    seed: int | None = Field(default=None, description="Makes sampling repeatable.")
    stop: tuple[str, ...] = Field(default=(), description="Strings that end the answer.")
    grammar: str | None = Field(default=None, description="What every answer follows, as ragblend takes it.")
    policy: str | None = Field(default=None, description="Which reused tokens are recomputed.")
    ratio: float | Literal["auto"] | None = Field(
        default=None, description="Share of the reused tokens that is recomputed; auto: what loading gives time for."
    )
    overflow: Literal["refuse", "drop"] | None = Field(default=None, description="What a too long prompt does.")
    cached_content: str | None = Field(default=None, description="A named cache that prompts go on from.")

    _library: Library = PrivateAttr()
    _opened_here: bool = PrivateAttr()

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        library: Library | str | Path | None = None,
        engine: Engine | None = None,
        learn: Learn | None = None,
        **settings: Any,
    ) -> None:
        if unknown := sorted(set(settings) - set(type(self).model_fields)):
            raise ConfigError(f"unknown setting: {', '.join(unknown)}; there are {', '.join(_SETTINGS)}")
        _generation({name: settings[name] for name in _GENERATION if name in settings})
        BlendSettings(**{name: settings[name] for name in _BLENDING if settings.get(name) is not None})
        super().__init__(**settings)
        self._library, self._opened_here = open_library(library, engine=engine, model=model, learn=learn)

    @classmethod
    def class_name(cls) -> str:
        return "RagBlend"

    @property
    def library(self) -> Library:
        """Where the KV is kept: precompute, forget and look after it there."""
        return self._library

    @property
    def engine(self) -> Engine:
        """The model."""
        return engine_of(self._library)

    @property
    def metadata(self) -> LLMMetadata:
        engine = self.engine
        return LLMMetadata(
            context_window=engine.context_length,
            num_output=self.max_tokens,
            is_chat_model=engine.tokenizer.chat_template is not None,
            is_function_calling_model=engine.supports_tools,
            model_name=engine.name,
        )

    def tokenize(self, text: str) -> list[int]:
        """The model's own token ids, for ``Settings.tokenizer``: LlamaIndex otherwise counts with another's."""
        return self.engine.template.text_ids(text)

    def close(self) -> None:
        """Close the library, if it was opened here."""
        if self._opened_here:
            self._library.close()

    def __enter__(self) -> RagBlend:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        return _chat_responses(kwargs).whole(self._chat(messages, kwargs).complete())

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        return pieces(self._chat(messages, kwargs), _chat_responses(kwargs))

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        return await whole(lambda: self._chat(messages, kwargs), _chat_responses(kwargs))

    @llm_chat_callback()
    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseAsyncGen:
        stream = await asyncio.to_thread(self._chat, messages, kwargs)
        return async_pieces(stream, _chat_responses(kwargs))

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return CompletionResponses().whole(self._complete(prompt, formatted, kwargs).complete())

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        return pieces(self._complete(prompt, formatted, kwargs), CompletionResponses())

    @llm_completion_callback()
    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return await whole(lambda: self._complete(prompt, formatted, kwargs), CompletionResponses())

    @llm_completion_callback()
    async def astream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseAsyncGen:
        stream = await asyncio.to_thread(self._complete, prompt, formatted, kwargs)
        return async_pieces(stream, CompletionResponses())

    def structured_predict(
        self,
        output_cls: type[Model],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> Model:
        """An ``output_cls`` read out of the answer, which cannot but fit its schema unless max_tokens cuts it."""
        fitting = self._fitting(output_cls, llm_kwargs)
        return cast(Model, super().structured_predict(output_cls, prompt, fitting, **prompt_args))

    async def astructured_predict(
        self,
        output_cls: type[Model],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> Model:
        """As ``structured_predict``."""
        fitting = self._fitting(output_cls, llm_kwargs)
        return cast(Model, await super().astructured_predict(output_cls, prompt, fitting, **prompt_args))

    def _fitting(self, output_cls: type[Model], llm_kwargs: dict[str, Any] | None) -> dict[str, Any]:
        """A model without tool calls is asked for JSON, and held to it. With tool calls, the call is required."""
        held = (
            {} if self.metadata.is_function_calling_model else {"grammar": json_grammar(output_cls.model_json_schema())}
        )
        return {**held, **(llm_kwargs or {})}

    def _chat(self, messages: Sequence[ChatMessage], kwargs: Mapping[str, Any]) -> AnswerStream:
        """An answer to ``messages``: through the user's own messages_to_prompt, else the chat template."""
        request = self._request(kwargs)
        own = self.messages_to_prompt
        if own is None or own is default_messages_to_prompt:
            return self._library.chat(to_messages(messages), tools=kwargs.get("tools"), **request)
        return self._library.complete(own(messages), control_tokens=True, **request)

    def _complete(self, prompt: str, formatted: bool, kwargs: Mapping[str, Any]) -> AnswerStream:
        """An answer to ``prompt``: through the user's own completion_to_prompt unless it is formatted;
        otherwise, from a chat model, as to a user's message. Control tokens work in formatted prompts only."""
        own = self.completion_to_prompt
        if own is None or own is default_completion_to_prompt:
            if not formatted and self.metadata.is_chat_model:
                return self._chat([ChatMessage(role=MessageRole.USER, content=prompt)], kwargs)
        elif not formatted:
            prompt, formatted = own(prompt), True
        return self._library.complete(prompt, control_tokens=formatted, **self._request(kwargs))

    def _request(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of ``Library.chat`` and ``complete``: this LLM's settings, with those of the call on top."""
        if unknown := sorted(set(kwargs) - {*_SETTINGS, "tools"}):
            raise ConfigError(f"unknown argument: {', '.join(unknown)}; there are {', '.join(_SETTINGS)}")
        settings = {name: kwargs.get(name, getattr(self, name)) for name in _SETTINGS}
        generation = _generation({name: settings[name] for name in _GENERATION})
        blending = {name: settings[name] for name in _BLENDING}
        return {"generation": generation, "cache": settings["cached_content"], **blending}

    def _prepare_chat_with_tools(
        self,
        tools: Sequence[BaseTool],
        user_msg: str | ChatMessage | None = None,
        chat_history: list[ChatMessage] | None = None,
        verbose: bool = False,
        allow_parallel_tool_calls: bool = False,
        tool_required: bool = False,
        tool_choice: str | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Arguments of ``chat``. Where a tool is required, the answer can be nothing but a valid call.

        tool_choice: ``auto``, ``required``, or the name of the only tool to offer, which is then required.
        """
        messages = list(chat_history or [])
        if user_msg is not None:
            messages.append(ChatMessage(role="user", content=user_msg) if isinstance(user_msg, str) else user_msg)
        offered = [tool for tool in tools if tool_choice in (None, "auto", "required", tool.metadata.name)]
        if tools and not offered:
            raise ConfigError(f"tool_choice names {tool_choice!r}, which is not among the tools")
        specifications = [tool.metadata.to_openai_tool(skip_length_check=True) for tool in offered]
        if tool_required or tool_choice not in (None, "auto"):
            kwargs["grammar"] = tool_call_grammar(specifications, self.engine.tokenizer)
        return {"messages": messages, "tools": specifications or None, **kwargs}

    def _validate_chat_with_tools_response(
        self,
        response: ChatResponse,
        tools: Sequence[BaseTool],
        allow_parallel_tool_calls: bool = False,
        **kwargs: Any,
    ) -> ChatResponse:
        if not allow_parallel_tool_calls:
            blocks = response.message.blocks
            first = next((block for block in blocks if isinstance(block, ToolCallBlock)), None)
            response.message.blocks = [b for b in blocks if not isinstance(b, ToolCallBlock) or b is first]
        return response

    def get_tool_calls_from_response(
        self,
        response: ChatResponse,
        error_on_no_tool_call: bool = True,
        **kwargs: Any,
    ) -> list[ToolSelection]:
        """The tools that the model called. Raises ValueError if it called none and that is an error."""
        calls = [block for block in response.message.blocks if isinstance(block, ToolCallBlock)]
        if not calls and error_on_no_tool_call:
            raise ValueError(f"the model called no tool but answered: {response.message.content!r}")
        return [
            ToolSelection(tool_id=call.tool_call_id or "", tool_name=call.tool_name, tool_kwargs=arguments(call))
            for call in calls
        ]


def _chat_responses(kwargs: Mapping[str, Any]) -> ChatResponses:
    return ChatResponses(tools=bool(kwargs.get("tools")))


def _generation(settings: Mapping[str, Any]) -> GenerationSettings:
    stop = settings.get("stop") or ()
    return GenerationSettings(**{**settings, "stop": (stop,) if isinstance(stop, str) else tuple(stop)})


def library_of(
    library: RagBlend | Library | str | Path, *, engine: Engine | None = None, model: str | Path | None = None
) -> Library:
    """The library of an LLM, an open one, or the one in a folder, opened with ``engine`` or ``model``.

    Raises as ``open_library``.
    """
    target = library.library if isinstance(library, RagBlend) else library
    return open_library(target, engine=engine, model=model)[0]
