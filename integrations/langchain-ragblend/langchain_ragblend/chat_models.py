"""A chat model that reuses the KV of every document it has seen."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.exceptions import OutputParserException
from langchain_core.language_models import BaseChatModel, LangSmithParams, LanguageModelInput, ModelProfile
from langchain_core.language_models.chat_models import agenerate_from_stream, generate_from_stream
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from pydantic import Field

from langchain_ragblend._messages import messages_of
from langchain_ragblend._model import RagBlendModel, Settings, metadata_of, usage_of
from langchain_ragblend._streaming import Trimmed, async_pieces, in_thread, pieces
from langchain_ragblend._tools import Tool, forced_tools, require_tools, schemas_of
from ragblend import AnswerStream, ToolCallReader, tool_call_grammar


class ChatRagBlend(RagBlendModel, BaseChatModel):
    """A model on this machine that computes the KV of each document once and reuses it wherever it stands.

    .. code-block:: python

        llm = ChatRagBlend(model="Qwen/Qwen2.5-7B-Instruct", library="handbook.rag")
        llm.invoke("Question ... documents in the text ...")  # known paragraphs are reused by themselves
        llm.invoke("How long is the warranty?", documents=documents)  # each document is a chunk of its own

    Documents are kept apart when they come as ``documents=``, bound or for one call; as content blocks of type
    ``text-plain``; in a message's ``additional_kwargs["documents"]``; or as the artifact of a tool message. In
    stuffed text, paragraphs that were seen before are found, in whatever order.

    A call also takes max_tokens, temperature, top_p, top_k, repetition_penalty, seed, policy, ratio, overflow,
    cached_content and timeout. ``usage_metadata`` counts reused tokens as ``cache_read``; ``response_metadata`` has
    timings, hits, misses, sources and what became of cache points.

    Raises ragblend's errors: ConfigError, ContextOverflowError, ModelError, LibraryError, ...
    """

    max_retries: int | None = None
    """Of LangChain's standard parameters. Nothing is sent that could fail on its way, so nothing is retried."""
    api_key: str | None = Field(default=None, exclude=True, repr=False)
    """Of LangChain's standard parameters, and not used."""

    model_config = RagBlendModel.model_config  # stricter than LangChain's own

    @property
    def _llm_type(self) -> str:
        return "ragblend-chat"

    @classmethod
    def is_lc_serializable(cls) -> bool:
        return True

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = super()._get_ls_params(stop=stop or self.stop, **kwargs)
        params["ls_provider"] = "ragblend"
        params["ls_model_name"] = kwargs.get("model", self._engine.name)
        return params

    def _resolve_model_profile(self) -> ModelProfile:
        tools = self._engine.supports_tools
        return ModelProfile(
            name=self._engine.name,
            open_weights=True,
            max_input_tokens=self._engine.context_length,
            max_output_tokens=self.max_tokens,
            text_inputs=True,
            text_outputs=True,
            image_inputs=False,
            audio_inputs=False,
            video_inputs=False,
            pdf_inputs=False,
            tool_calling=tools,
            tool_choice=tools,
            structured_output=False,
        )

    def get_num_tokens(self, text: str) -> int:
        """Tokens of ``text`` in this model."""
        return self._engine.count_tokens(text)

    def get_token_ids(self, text: str) -> list[int]:
        return list(self._engine.template.text_ids(text))

    def bind_tools(
        self, tools: Sequence[Tool], *, tool_choice: Any = None, strict: bool | None = None, **kwargs: Any
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Let the model call ``tools``.

        tool_choice: None or ``auto``: the model chooses, and its calls are read from the text that it writes, so
        arguments may be wrong. ``any``, True or a tool's name: tokens that would not continue such a call are
        ruled out, so there is exactly one call whose arguments fit the schema; whether they make sense is the
        model's doing. If max_tokens cuts it, OutputParserException is raised.

        Raises NotImplementedError where the model's chat template has no tools; ConfigError (unknown tool).
        """
        require_tools(self._engine)
        schemas = schemas_of(tools)
        if not forced_tools(schemas, tool_choice) and strict:
            raise NotImplementedError("arguments can only be held to their schema in a forced call: give tool_choice")
        return self.bind(tools=schemas, tool_choice=tool_choice, **kwargs)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return generate_from_stream(self._stream(messages, stop, **kwargs))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return await agenerate_from_stream(self._astream(messages, stop, **kwargs))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        asked = self._ask(messages, stop, **kwargs)
        for piece in pieces(asked.stream, asked.settings.timeout):
            for chunk in asked.push(piece):
                if run_manager:
                    run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                yield chunk
        yield from asked.finish()

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        asked = await in_thread(self._ask, messages, stop, **kwargs)
        async for piece in async_pieces(asked.stream, asked.settings.timeout):
            for chunk in asked.push(piece):
                if run_manager:
                    await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                yield chunk
        for chunk in asked.finish():
            yield chunk

    def _ask(
        self,
        messages: Sequence[BaseMessage],
        stop: list[str] | None = None,
        *,
        documents: Any = None,
        tools: Sequence[dict[str, Any]] | None = None,
        tool_choice: Any = None,
        **kwargs: Any,
    ) -> _Asked:
        """Search for what is known in the messages; nothing is computed yet."""
        forced = forced_tools(tools or [], tool_choice)
        grammar = tool_call_grammar(forced, self._engine.tokenizer) if forced else None
        settings = self._settings(kwargs, stop, grammar)
        shown = None if tool_choice == "none" else tools
        system = None if settings.arguments["cache"] else self._engine.template.system
        conversation = messages_of(messages, documents, system)
        stream = self._library.chat(conversation, tools=shown, **settings.arguments)
        return _Asked(stream, settings, reads_calls=bool(shown), forced=bool(forced))


class _Asked:
    """A question that is being answered: pieces of text in, chunks of a message out."""

    def __init__(self, stream: AnswerStream, settings: Settings, *, reads_calls: bool, forced: bool) -> None:
        self.stream = stream
        self.settings = settings
        self._reader = ToolCallReader() if reads_calls else None
        self._forced = forced
        self._text = Trimmed()
        self._written = ""
        self._sent = 0

    def push(self, piece: str) -> Iterator[ChatGenerationChunk]:
        """Chunks for text and tool calls that are certain with this piece."""
        self._written += piece
        yield from self._chunks(self._reader.push(piece) if self._reader else piece)

    def finish(self) -> Iterator[ChatGenerationChunk]:
        """The rest, and a last chunk with usage. Raises OutputParserException if a forced call was cut."""
        if self._reader:
            rest = self._reader.finish()
            if self._forced and not self._reader.calls:
                limit = self.settings.arguments["generation"].max_tokens
                raise OutputParserException(
                    f"max_tokens={limit} cut the tool call before it was complete: raise max_tokens",
                    llm_output=self._written,
                )
            yield from self._chunks(rest)
        answer = self.stream.answer
        reason = "tool_calls" if self._sent else answer.finish_reason
        yield ChatGenerationChunk(
            message=AIMessageChunk(
                content="",
                usage_metadata=usage_of(answer),
                response_metadata={**metadata_of(answer), "finish_reason": reason},
                chunk_position="last",
            ),
            generation_info={"finish_reason": reason},
        )

    def _chunks(self, text: str) -> Iterator[ChatGenerationChunk]:
        if certain := self._text.push(text):
            yield ChatGenerationChunk(message=AIMessageChunk(content=certain))
        for call in self._reader.calls[self._sent :] if self._reader else ():
            arguments = json.dumps(call.arguments, ensure_ascii=False)
            chunk = tool_call_chunk(name=call.name, args=arguments, id=f"call_{uuid.uuid4().hex}", index=self._sent)
            self._sent += 1
            yield ChatGenerationChunk(message=AIMessageChunk(content="", tool_call_chunks=[chunk]))
