"""A completion model that reuses the KV of every document it has seen."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseLLM
from langchain_core.outputs import Generation, GenerationChunk, LLMResult

from langchain_ragblend._model import RagBlendModel, metadata_of, usage_of
from langchain_ragblend._streaming import async_pieces, in_thread, pieces
from ragblend import Answer


class RagBlendLLM(RagBlendModel, BaseLLM):
    """Continues plain text, without a chat template. For instruction-tuned models take ``ChatRagBlend``.

    .. code-block:: python

        llm = RagBlendLLM(library="handbook.rag")
        llm.invoke("... documents ...\n\nQuestion: How long is the warranty?\nAnswer:", stop=["\n"])

    Known texts are found in the prompt and reused, as by ``ChatRagBlend``, and a call takes the same settings.
    ``generation_info`` has usage, timings, hits and misses. The text is what the model wrote, white space included.
    """

    model_config = RagBlendModel.model_config  # stricter than LangChain's own

    @property
    def _llm_type(self) -> str:
        return "ragblend"

    @classmethod
    def is_lc_serializable(cls) -> bool:
        return True

    def get_num_tokens(self, text: str) -> int:
        """Tokens of ``text`` in this model."""
        return self._engine.count_tokens(text)

    def get_token_ids(self, text: str) -> list[int]:
        return list(self._engine.template.text_ids(text))

    def _generate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> LLMResult:
        emit = run_manager if self.streaming else None
        return _result([_joined(list(self._stream(prompt, stop, emit, **kwargs))) for prompt in prompts])

    async def _agenerate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> LLMResult:
        emit = run_manager if self.streaming else None
        streams = [self._astream(prompt, stop, emit, **kwargs) for prompt in prompts]
        return _result([_joined([chunk async for chunk in stream]) for stream in streams])

    def _stream(
        self,
        prompt: str,
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[GenerationChunk]:
        settings = self._settings(kwargs, stop)
        stream = self._library.complete(prompt, **settings.arguments)
        for piece in pieces(stream, settings.timeout):
            chunk = GenerationChunk(text=piece)
            if run_manager:
                run_manager.on_llm_new_token(piece, chunk=chunk)
            yield chunk
        yield _last(stream.answer)

    async def _astream(
        self,
        prompt: str,
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[GenerationChunk]:
        settings = self._settings(kwargs, stop)
        stream = await in_thread(self._library.complete, prompt, **settings.arguments)
        async for piece in async_pieces(stream, settings.timeout):
            chunk = GenerationChunk(text=piece)
            if run_manager:
                await run_manager.on_llm_new_token(piece, chunk=chunk)
            yield chunk
        yield _last(stream.answer)


def _last(answer: Answer) -> GenerationChunk:
    return GenerationChunk(text="", generation_info={**metadata_of(answer), "usage": usage_of(answer)})


def _joined(chunks: list[GenerationChunk]) -> Generation:
    return Generation(text="".join(chunk.text for chunk in chunks), generation_info=chunks[-1].generation_info)


def _result(made: list[Generation]) -> LLMResult:
    usages = [generation.generation_info["usage"] for generation in made if generation.generation_info]
    names = ("input_tokens", "output_tokens", "total_tokens")
    total = {name: sum(usage[name] for usage in usages) for name in names}
    return LLMResult(generations=[[generation] for generation in made], llm_output={"token_usage": total})
