"""A running answer: text as it comes, then usage and timings."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Protocol

import torch
from transformers import LogitsProcessor

from ragblend.blend.blender import Blended
from ragblend.config import BlendSettings, GenerationSettings
from ragblend.errors import ConfigError, GenerationCancelled
from ragblend.generate import AnswerText, end_token_ids, generate_ids
from ragblend.models.adapter import DecoderAdapter
from ragblend.prefix.request import Created, PrefixRequest
from ragblend.prompt import Prompt, Segment
from ragblend.results import Answer, CachePointUse, Source, Timings, Usage


class StreamWatcher(Protocol):
    """Whoever has to know when a stream runs. Called from the thread that reads the stream."""

    def started(self, stream: AnswerStream) -> None:
        """Before the first piece is computed; what is raised here ends the stream."""

    def answered(self) -> int:
        """The answer is whole, not cancelled. Returns the prompt's tokens that wait to be precomputed."""
        ...

    def ended(self, stream: AnswerStream) -> None:
        """After ``started``, always: at the end, after an error, and when the stream is left."""


class AnswerStream(Iterator[str]):
    """Iterate to get the text; afterwards ``answer`` holds the whole result.

    ``cancel`` (from any thread) ends it at the next layer or token; the answer then has what came
    so far, with finish_reason ``cancelled``. Leaving it as a context manager cancels it too.
    """

    def __init__(
        self,
        *,
        adapter: DecoderAdapter,
        tokenizer: Any,
        model_name: str,
        prompt: Prompt,
        dropped: tuple[Segment, ...],
        settings: BlendSettings,
        generation: GenerationSettings,
        retrieve_s: float,
        run_blend: Callable[[Callable[[], bool]], Blended],
        grammar: LogitsProcessor | None = None,
        watcher: StreamWatcher | None = None,
        prefix: PrefixRequest | None = None,
    ) -> None:
        self._adapter = adapter
        self._tokenizer = tokenizer
        self._model_name = model_name
        self._prompt = prompt
        self._dropped = dropped
        self._settings = settings
        self._generation = generation
        self._retrieve_s = retrieve_s
        self._run_blend = run_blend
        self._grammar = grammar
        self._watcher = watcher
        self._prefix = prefix
        self._cancelled = threading.Event()
        self._failure: Exception | None = None
        self._answer: Answer | None = None
        self._pieces = self._produce()

    def __next__(self) -> str:
        return next(self._pieces)

    def __enter__(self) -> AnswerStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._failure = None
        self.cancel()
        for _ in self._pieces:
            pass

    def cancel(self) -> None:
        """Stop at the next layer or token and free the canvas."""
        self._cancelled.set()

    def abort(self, error: Exception) -> None:
        """As ``cancel``, but whoever reads the stream gets ``error``."""
        self._failure = error
        self.cancel()

    @property
    def finished(self) -> bool:
        """Whether there is an ``answer``."""
        return self._answer is not None

    @property
    def answer(self) -> Answer:
        """The finished answer. Raises ConfigError while the stream is still running."""
        if self._answer is None:
            raise ConfigError("the answer is not finished: iterate over the stream first, or call complete()")
        return self._answer

    def complete(self) -> Answer:
        """Run to the end and return the answer."""
        for _ in self:
            pass
        return self.answer

    def _produce(self) -> Iterator[str]:
        if self._watcher is not None:
            self._watcher.started(self)
        try:
            yield from self._run()
        finally:
            if self._prefix is not None:
                self._prefix.close()
            if self._watcher is not None:
                self._watcher.ended(self)

    def _run(self) -> Iterator[str]:
        began = time.perf_counter()
        try:
            blended = self._run_blend(self._cancelled.is_set)
        except GenerationCancelled:
            self._raise_failure()
            self._answer = self._finished("", [], "cancelled", None, 0.0, time.perf_counter() - began)
            return
        text = AnswerText(self._tokenizer, self._generation.stop)
        prompt_ids = torch.tensor(self._prompt.token_ids, device=self._adapter.device)
        pieces: list[str] = []
        token_ids: list[int] = []
        first_token = 0.0
        reason = "stop"
        for token_id in generate_ids(self._adapter, blended, prompt_ids, self._generation, self._grammar):
            if not token_ids:
                first_token = time.perf_counter() - began
            token_ids.append(token_id)
            if piece := text.push(token_id):
                pieces.append(piece)
                yield piece
            self._raise_failure()
            if text.stopped or self._cancelled.is_set():
                reason = "stop" if text.stopped else "cancelled"
                break
        else:
            if len(token_ids) == self._generation.max_tokens and token_ids[-1] not in end_token_ids(
                self._adapter.model
            ):
                reason = "length"
        if piece := text.finish():
            pieces.append(piece)
            yield piece
        total = time.perf_counter() - began
        self._answer = self._finished("".join(pieces), token_ids, reason, blended, first_token, total)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _keep(self, blended: Blended | None, answer_ids: list[int]) -> tuple[Created, tuple[CachePointUse, ...]]:
        """Leave what was computed to the prompts to come: after the answer, so that nobody waits for it."""
        if self._prefix is None or blended is None:
            return Created(), ()
        rows = blended.canvas.get_seq_length()
        token_ids = (*self._prompt.token_ids, *answer_ids)[:rows]
        return self._prefix.keep(
            blended.canvas.take, token_ids, blended.approximate, blended.computed_between, len(answer_ids)
        )

    def _finished(
        self, text: str, token_ids: list[int], reason: str, blended: Blended | None, first_token: float, total: float
    ) -> Answer:
        created, cache_points = self._keep(blended if reason != "cancelled" else None, token_ids)
        return Answer(
            text=text.strip(),
            token_ids=tuple(token_ids),
            finish_reason=reason,
            sources=tuple(sorted(_sources(self._prompt.chunks), key=lambda source: -source.score)),
            usage=Usage(
                prompt_tokens=len(self._prompt),
                cached_tokens=blended.cached if blended else 0,
                recomputed_tokens=blended.recomputed if blended else 0,
                computed_tokens=blended.computed if blended else 0,
                cache_creation_tokens=created.tokens,
                completion_tokens=len(token_ids),
                cache_creation_5m_tokens=created.tokens_5m,
                cache_creation_1h_tokens=created.tokens_1h,
            ),
            timings=Timings(
                retrieve_s=self._retrieve_s,
                load_s=blended.load_s if blended else 0.0,
                select_s=blended.select_s if blended else 0.0,
                recompute_s=blended.recompute_s if blended else 0.0,
                ttft_s=first_token,
                total_s=total + self._retrieve_s,
                hidden_load_s=blended.hidden_load_s if blended else 0.0,
            ),
            policy=self._settings.policy,
            ratio=blended.ratio if blended else _least_ratio(self._settings),
            model=self._model_name,
            dropped=_sources(self._dropped),
            hits=blended.hits if blended else 0,
            misses=blended.misses if blended else 0,
            matched_tokens=blended.matched_tokens if blended else 0,
            prefix_tokens=blended.prefix_tokens if blended else 0,
            cache_points=cache_points,
            learning=self._watcher.answered() if self._watcher and reason != "cancelled" else 0,
        )


def _least_ratio(settings: BlendSettings) -> float:
    return settings.ratio_floor if settings.ratio == "auto" else settings.ratio


def _sources(segments: tuple[Segment, ...]) -> tuple[Source, ...]:
    return tuple(segment.source for segment in segments if segment.source is not None)
