"""Whoever stops listening stops the computing, and what it held is free again."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest
from llama_index.core.base.llms.types import ChatMessage

from llama_index.llms.ragblend import RagBlend
from ragblend.models.canvas import Canvas

LONG = [ChatMessage(role="user", content="Tell me everything. " * 20)]


@pytest.fixture
def endless(engine) -> Iterator[RagBlend]:
    """An LLM whose answers take minutes unless they are cancelled."""
    with RagBlend(engine=engine, max_tokens=20_000, grammar="start: /[a-z ]{19999}/") as llm:
        yield llm


@pytest.fixture
def canvases(monkeypatch) -> list[weakref.ref[Canvas]]:
    """Weak references to every canvas that is made."""
    made: list[weakref.ref[Canvas]] = []
    original = Canvas.__init__

    def watched(self, *args, **kwargs) -> None:
        original(self, *args, **kwargs)
        made.append(weakref.ref(self))

    monkeypatch.setattr(Canvas, "__init__", watched)
    return made


def assert_freed(canvases) -> None:
    gc.collect()
    assert canvases
    assert [canvas() for canvas in canvases] == [None] * len(canvases)


def test_a_stream_that_is_left_is_cancelled(endless, canvases):
    stream = endless.stream_chat(LONG)
    assert next(stream).delta
    stream.close()
    assert_freed(canvases)


def test_a_stream_that_is_dropped_is_cancelled(endless, canvases):
    for response in endless.stream_complete("Tell me everything."):
        assert response.delta
        break
    del response
    assert_freed(canvases)


def test_a_cancelled_task_stops_the_answer(endless, canvases):
    async def impatient() -> None:
        task = asyncio.create_task(endless.achat(LONG))
        while not canvases:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(impatient())
    assert_freed(canvases)


def test_a_timeout_stops_the_answer(endless, canvases):
    async def impatient() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(endless.acomplete("Tell me everything."), 0.5)

    asyncio.run(impatient())
    assert_freed(canvases)


@pytest.mark.parametrize("close", [True, False])
def test_an_asynchronous_stream_that_is_left_is_cancelled(endless, canvases, close):
    async def impatient() -> None:
        stream = await endless.astream_chat(LONG)
        async for response in stream:
            assert response.delta
            break
        if close:
            await stream.aclose()

    asyncio.run(impatient())
    assert_freed(canvases)


def test_a_task_that_reads_a_stream_can_be_cancelled(endless, canvases):
    async def read() -> None:
        async for _ in await endless.astream_chat(LONG):
            pass

    async def impatient() -> None:
        task = asyncio.create_task(read())
        while not canvases:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(impatient())
    assert_freed(canvases)


def test_other_tasks_run_while_an_answer_is_computed(llm):
    async def both() -> int:
        ticks = 0
        task = asyncio.create_task(llm.achat(LONG, max_tokens=60))
        while not task.done():
            ticks += 1
            await asyncio.sleep(0.001)
        assert (await task).message.content
        return ticks

    assert asyncio.run(both()) > 3


def test_answers_at_the_same_time_do_not_meet(llm):
    prompts = [f"Question {number}?" for number in range(4)]

    async def all_at_once() -> list[str]:
        return [response.text for response in await asyncio.gather(*map(llm.acomplete, prompts))]

    assert asyncio.run(all_at_once()) == [llm.complete(prompt).text for prompt in prompts]
