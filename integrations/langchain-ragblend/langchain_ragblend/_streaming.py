"""Taking a running answer piece by piece, with and without asyncio, so that nothing keeps running behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from ragblend import AnswerStream

T = TypeVar("T")


class Trimmed:
    """Text without white space at its ends, as it comes."""

    def __init__(self) -> None:
        self._begun = False
        self._held = ""

    def push(self, piece: str) -> str:
        """Text that is certain; white space waits for what follows it."""
        text = self._held + piece
        text = text if self._begun else text.lstrip()
        certain = text.rstrip()
        self._begun = self._begun or bool(certain)
        self._held = text[len(certain) :]
        return certain


@contextmanager
def limited(stream: AnswerStream, timeout: float | None) -> Iterator[None]:
    """Cancel the stream after ``timeout`` seconds. Raises TimeoutError at the end of the block if that happened."""
    if timeout is None:
        yield
        return
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        stream.cancel()

    timer = threading.Timer(timeout, expire)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
    if expired.is_set() and stream.answer.finish_reason == "cancelled":
        raise TimeoutError(f"no complete answer within {timeout:g} s: raise timeout, or ask for fewer tokens")


def pieces(stream: AnswerStream, timeout: float | None) -> Iterator[str]:
    """The stream's pieces. Leaving early cancels it and frees what it holds."""
    with limited(stream, timeout), stream:
        yield from stream


async def async_pieces(stream: AnswerStream, timeout: float | None) -> AsyncIterator[str]:
    """As ``pieces``. The work is done in threads, one step at a time; a cancelled task ends it at its next step."""
    loop = asyncio.get_running_loop()
    step: asyncio.Future[str | None] | None = None
    with limited(stream, timeout):
        try:
            while True:
                step = loop.run_in_executor(None, next, stream, None)
                piece = await asyncio.shield(step)
                if piece is None:
                    return
                yield piece
        finally:
            stream.cancel()
            if step is not None:
                await _finished(step)
            await _finished(loop.run_in_executor(None, stream.__exit__, None, None, None))


async def in_thread(call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """The call's result; a task that is cancelled meanwhile still waits for it."""
    step = asyncio.get_running_loop().run_in_executor(None, partial(call, *args, **kwargs))
    try:
        return await asyncio.shield(step)
    except asyncio.CancelledError:
        await _finished(step)
        raise


async def _finished(step: asyncio.Future[Any]) -> None:
    """Wait for a thread's step, whatever comes of it, even while the task is being cancelled."""
    while not step.done():
        try:
            await asyncio.wait([step])
        except asyncio.CancelledError:
            continue
    step.exception()
