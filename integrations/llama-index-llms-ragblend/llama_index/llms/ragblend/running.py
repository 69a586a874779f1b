"""Running an answer to its end or piece by piece, in the caller's thread or beside an event loop.

Whoever stops listening cancels the answer, and what it held is freed before the caller goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Protocol, TypeVar

from ragblend import Answer, AnswerStream

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Responses(Protocol[T_co]):
    """Builds what is handed out for an answer."""

    def after(self, piece: str) -> T_co: ...

    def at_end(self, answer: Answer) -> T_co: ...

    def whole(self, answer: Answer) -> T_co: ...


def pieces(stream: AnswerStream, responses: Responses[T]) -> Generator[T, None, None]:
    """A response after each piece of text, and a last one with usage and timings."""
    with stream:
        for piece in stream:
            yield responses.after(piece)
        yield responses.at_end(stream.answer)


async def whole(open_stream: Callable[[], AnswerStream], responses: Responses[T]) -> T:
    """The response to a whole answer, computed in a thread. Cancelling the task cancels the answer."""
    stream = await asyncio.to_thread(open_stream)
    return responses.whole(await _beside(stream, stream.complete))


async def async_pieces(stream: AnswerStream, responses: Responses[T]) -> AsyncGenerator[T, None]:
    """As ``pieces``, each piece computed in a thread."""
    try:
        while (piece := await _beside(stream, lambda: next(stream, None))) is not None:
            yield responses.after(piece)
        yield responses.at_end(stream.answer)
    finally:
        stream.cancel()
        await asyncio.shield(asyncio.to_thread(stream.__exit__, None, None, None))


async def _beside(stream: AnswerStream, work: Callable[[], T]) -> T:
    """``work`` in a thread. A cancelled task waits for it to notice: a generator cannot be left running."""
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        stream.cancel()
        with contextlib.suppress(Exception):
            await running
        raise
