"""The answering half of a library: from a question, a conversation or plain text to a stream."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

from ragblend.answer import AnswerStream
from ragblend.config import ChunkOrder, GenerationSettings, Ratio, require
from ragblend.errors import LibraryError
from ragblend.library.home import Home
from ragblend.library.order import in_order
from ragblend.library.protocol import LibraryEngine
from ragblend.library.report import Hit
from ragblend.library.reuse import Reuse
from ragblend.prefix.names import NamedCache
from ragblend.prompt import Message, Segment
from ragblend.prompt.chat import Piece
from ragblend.prompt.segments import CacheBreak
from ragblend.results import Answer
from ragblend.store.tiers import TieredStore

Overflow = Literal["refuse", "drop"]


class Answering(ABC):
    """What ``Library`` answers, each time as a stream; ``ask`` waits for its end.

    The settings of a request are the same everywhere, and None stands for the engine's own. policy, ratio, overflow
    and, where chunks are searched for, order: see BlendSettings. generation: how the answer is decoded. All raise
    ConfigError (settings out of range, an unknown policy), CacheHandleError, ContextOverflowError,
    LibraryMismatchError and StoreError at once; computing begins with the first piece of text asked for.
    """

    namespace: str
    store: TieredStore
    _reuse: Reuse | None
    _home: Home

    @abstractmethod
    def _require_engine(self) -> LibraryEngine: ...

    @abstractmethod
    def search(self, question: str, k: int = 6) -> list[Hit]: ...

    def ask(
        self,
        question: str,
        k: int = 6,
        *,
        cache: NamedCache | str | None = None,
        policy: str | None = None,
        ratio: Ratio | None = None,
        generation: GenerationSettings | None = None,
        overflow: Overflow | None = None,
        order: ChunkOrder | None = None,
    ) -> Answer:
        """Answer ``question`` from the ``k`` nearest chunks. Raises as ``search``, too.

        cache: a named cache, whose messages stand before the chunks instead of the engine's own.
        """
        return self.stream(
            question, k, cache=cache, policy=policy, ratio=ratio, generation=generation, overflow=overflow, order=order
        ).complete()

    def stream(
        self,
        question: str,
        k: int = 6,
        *,
        cache: NamedCache | str | None = None,
        policy: str | None = None,
        ratio: Ratio | None = None,
        generation: GenerationSettings | None = None,
        overflow: Overflow | None = None,
        order: ChunkOrder | None = None,
    ) -> AnswerStream:
        """As ``ask``, but text piece by text piece. Searches at once."""
        engine = self._require_engine()
        settings = _given(policy=policy, ratio=ratio, overflow=overflow, order=order)
        blend = replace(engine.blend, **settings)
        began = time.perf_counter()
        hits = self.search(question, k)
        retrieve_s = time.perf_counter() - began
        chunks = [part for hit in in_order(hits, blend.order) for part in _placed(hit, engine)]
        if cache is None:
            prompt = engine.template.build(chunks, question)
        else:
            prompt = engine.caches.ask(self._use(cache), chunks, question)
        watcher = self._require_reuse().watcher()
        return engine.stream(
            prompt,
            store=self.store,
            blend=blend,
            generation=generation,
            retrieve_s=retrieve_s,
            watcher=watcher,
            prefixes=self._home.prefixes,
        )

    def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[dict[str, Any]] | None = None,
        cache: NamedCache | str | None = None,
        policy: str | None = None,
        ratio: Ratio | None = None,
        generation: GenerationSettings | None = None,
        overflow: Overflow | None = None,
    ) -> AnswerStream:
        """Answer a conversation through the model's chat template, reusing the KV of all that is known in it.

        Passages are chunks. Text is searched for known texts: precomputed ones, and indexed chunks as they
        stand in prompts; what that takes is ``retrieve_s``. cache: a named cache (``engine.caches.create``)
        whose messages come before these. Raises ConfigError, too, for a conversation or tools that the chat
        template does not take, and for more than four cache points; CacheHandleError.
        """
        engine, began = self._require_engine(), time.perf_counter()
        settings = _given(policy=policy, ratio=ratio, overflow=overflow)
        if cache is None:
            pieces = engine.template.chat.render(messages, tools)
            return self._answer(engine, began, pieces, (), generation, settings)
        named = self._use(cache)
        behind = engine.caches.go_on(named, messages, tools)
        if behind is None:
            pieces = engine.template.chat.render((*named.messages, *messages), tools)
            return self._answer(engine, began, pieces, (), generation, settings)
        return self._answer(engine, began, behind, named.token_ids, generation, settings, named.cache_point)

    def complete(
        self,
        prompt: str,
        *,
        control_tokens: bool = False,
        cache: NamedCache | str | None = None,
        policy: str | None = None,
        ratio: Ratio | None = None,
        generation: GenerationSettings | None = None,
        overflow: Overflow | None = None,
    ) -> AnswerStream:
        """Continue plain text, without a chat template; otherwise as ``chat``.

        control_tokens: parse control tokens such as ``<|im_start|>`` in ``prompt``, which then holds all that
        the model needs. For callers that write the model's own form and vouch for what stands in it.
        A known text at the very end is computed, since the last token always is. cache: a named cache, which the text
        goes on from.
        """
        engine, began = self._require_engine(), time.perf_counter()
        require(isinstance(prompt, str), f"a prompt must be a string, got {type(prompt).__name__}")
        require(bool(prompt.strip()), "the prompt is empty: give it some text")
        pieces = engine.template.chat.parse(prompt) if control_tokens else [prompt]
        opening = () if control_tokens else engine.template.opening_ids
        settings = _given(policy=policy, ratio=ratio, overflow=overflow)
        if cache is None:
            return self._answer(engine, began, pieces, opening, generation, settings)
        named = self._use(cache)
        return self._answer(engine, began, pieces, named.token_ids, generation, settings, named.cache_point)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing waits to be precomputed in the background; whether that is so."""
        return self._reuse is None or self._reuse.learner.wait(timeout_s)

    def _answer(
        self,
        engine: LibraryEngine,
        began: float,
        pieces: Iterable[Piece],
        opening_ids: tuple[int, ...],
        generation: GenerationSettings | None,
        settings: dict[str, Any],
        *cache_points: CacheBreak,
    ) -> AnswerStream:
        blend = replace(engine.blend, **settings)
        reuse = self._require_reuse()
        conversation = reuse.read(pieces, opening_ids)
        conversation.cache_points += cache_points
        retrieve_s = time.perf_counter() - began
        return engine.stream(
            conversation.prompt,
            store=self.store,
            blend=blend,
            generation=generation,
            retrieve_s=retrieve_s,
            watcher=reuse.watcher(conversation),
            prefixes=self._home.prefixes,
        )

    def _use(self, cache: NamedCache | str) -> NamedCache:
        """A named cache of this namespace, whose time to live counts from now. Raises CacheHandleError."""
        return self._home.use(cache)

    def _require_reuse(self) -> Reuse:
        if self._reuse is None:
            raise LibraryError("the library was opened without a model: open it with engine=Engine(...)")
        return self._reuse


def _placed(hit: Hit, engine: LibraryEngine) -> tuple[Segment, ...]:
    """A hit in a prompt. Chunks of files bring the blank line behind them; a text that was given does not."""
    if hit.metadata is None:
        return (hit.segment,)
    return (hit.segment, Segment("glue", tuple(engine.template.text_ids("\n\n"))))


def _given(**settings: Any) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}
