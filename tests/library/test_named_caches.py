"""Named caches in every way of asking: conversations, questions, plain text and prompts of segments."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from ragblend.config import GenerationSettings
from ragblend.errors import CacheHandleError, ConfigError
from ragblend.library.home import Home
from ragblend.library.library import Library
from ragblend.prefix.names import NamedCache
from ragblend.prompt import CachePoint, Message, Passage, Prompt, Segment
from tests import tiny

SYSTEM = "You are the clerk of a garden shop. " * 12
FEW_SHOT = [
    Message("user", ("Which mower? " * 8,)),
    Message("assistant", ("The red one. " * 8,)),
]
SHORT = GenerationSettings(max_tokens=3)


@pytest.fixture
def library(start, docs) -> Library:
    """Keeps only what is asked for by name."""
    opened = start(automatic=False)
    opened.add(docs)
    return opened


@pytest.fixture
def clerk(library: Library) -> NamedCache:
    return library.engine.caches.create([Message("system", (SYSTEM,))], name="clerk")


def whole(cache: NamedCache) -> int:
    """Tokens of the cache in whole blocks."""
    return cache.tokens // 16 * 16


class TestQuestions:
    @pytest.mark.parametrize("by", ["handle", "name", "id"])
    def test_go_on_from_one(self, library, clerk, by):
        handle = {"handle": clerk, "name": clerk.name, "id": clerk.id}[by]
        answer = library.ask("How long is the warranty?", k=2, cache=handle, policy="prefix", generation=SHORT)
        assert answer.prefix_tokens == whole(clerk)
        assert len(answer.sources) == 2
        [point] = answer.cache_points
        assert (point.tokens, point.kept) == (clerk.tokens, True)

    def test_are_the_conversation_of_its_messages_and_the_question(self, library, clerk):
        """Its messages stand where the engine's own instructions would."""
        hits = library.search("How long is the warranty?", k=2)
        prompt = library.engine.caches.ask(clerk, [hit.segment for hit in hits], "How long is the warranty?")
        text = library.engine.tokenizer.decode(prompt.token_ids)
        assert text.startswith("<|start|>system\n" + SYSTEM.strip())
        assert library.engine.template.system not in text
        assert text.index("Documents:") < text.index("warranty of the robot") < text.index("How long is the warranty?")
        assert text.endswith("<|start|>assistant\n")

    def test_are_answered_as_by_full_prefill_of_the_same_prompt(self, library, clerk):
        exact = library.ask("warranty", k=2, cache=clerk, policy="prefix", generation=SHORT)
        full = library.ask("warranty", k=2, cache=clerk, policy="full", generation=SHORT)
        assert (exact.token_ids, exact.usage.prompt_tokens) == (full.token_ids, full.usage.prompt_tokens)
        assert full.prefix_tokens == 0

    def test_reuse_chunks_behind_it(self, library, clerk):
        answer = library.ask("How long is the warranty?", k=2, cache=clerk, policy="none", generation=SHORT)
        assert (answer.hits, answer.misses) == (2, 0)
        assert answer.usage.cached_tokens > answer.prefix_tokens == whole(clerk)

    def test_go_on_from_examples(self, library):
        shots = library.engine.caches.create([Message("system", ("Be brief.",)), *FEW_SHOT], name="shots")
        answer = library.ask("warranty", k=1, cache=shots, generation=SHORT)
        assert answer.prefix_tokens == whole(shots)

    def test_go_on_from_one_that_the_template_merges_with_the_question(self, library):
        """Its last message is the user's own, so that some templates write one message of both: it is asked anyway."""
        started = library.engine.caches.create(FEW_SHOT[:1] * 2, name="started")
        assert library.ask("warranty", k=1, cache=started, generation=SHORT).text is not None


class TestText:
    @pytest.mark.parametrize("control_tokens", [False, True])
    def test_goes_on_from_one(self, library, clerk, control_tokens):
        answer = library.complete(
            "<|end|>\n<|start|>user\nWhich mower?", cache="clerk", control_tokens=control_tokens, generation=SHORT
        ).complete()
        assert answer.prefix_tokens == whole(clerk)
        assert answer.usage.prompt_tokens > clerk.tokens


class TestSegments:
    """A prompt of segments belongs to no library, and to the default namespace."""

    @pytest.fixture
    def engine(self, tiny_engine):
        yield tiny_engine
        tiny_engine.caches.clear()

    def test_go_on_from_one_that_was_made_of_segments(self, engine):
        beginning = Segment("prefix", tiny.random_ids(200, 1))
        cache = engine.caches.create([beginning], name="beginning", ttl="5m")
        question = Prompt((Segment("suffix", tiny.random_ids(30, 2)),))
        answer = engine.generate(question, cache=cache, generation=SHORT)
        assert answer.prefix_tokens == 192
        assert answer.usage.prompt_tokens == 230
        alone = engine.generate(Prompt((beginning, *question.segments)), generation=SHORT)
        assert answer.token_ids == alone.token_ids
        streamed = engine.stream(question, cache="beginning", generation=SHORT).complete()
        assert streamed.token_ids == answer.token_ids

    def test_go_on_from_one_that_was_made_of_messages(self, engine):
        cache = engine.caches.create([Message("system", ("You are a clerk. " * 10,))])
        rest = engine.template.control_ids("<|end|>\n<|start|>user\nHello<|end|>\n<|start|>assistant\n")
        answer = engine.generate(Prompt((Segment("suffix", tuple(rest)),)), cache=cache, generation=SHORT)
        assert answer.prefix_tokens == cache.tokens // 16 * 16

    def test_cache_points_move_behind_it(self, engine):
        cache = engine.caches.create([Segment("prefix", tiny.random_ids(160, 3))])
        prompt, _ = engine.caches.before(Prompt((Segment("suffix", tiny.random_ids(40, 4)),)), cache, None)
        assert [(point.tokens, point.named) for point in prompt.cache_points] == [(160, True)]

    def test_refusals(self, engine):
        cache = engine.caches.create([Segment("prefix", tiny.random_ids(160, 5))], name="segments")
        prompt = Prompt((Segment("suffix", tiny.random_ids(40, 4)),))
        with pytest.raises(ConfigError, match="prefixes='off'"):
            engine.generate(prompt, cache=cache, prefixes="off")
        with pytest.raises(CacheHandleError, match="no cache 'unknown'"):
            engine.generate(prompt, cache="unknown")
        other = engine.caches.own("tenant").prefixes
        with pytest.raises(CacheHandleError, match="belongs to namespace 'default', not to 'tenant'"):
            engine.generate(prompt, cache=cache, prefixes=other)
        with pytest.raises(ConfigError, match="messages, or of segments"):
            engine.caches.create([Message("user", ("Hello. " * 40,)), Segment("suffix", tiny.random_ids(200))])
        with pytest.raises(ConfigError, match="messages, or of segments"):
            engine.caches.create(["You are a clerk. " * 20])


def test_a_conversation_cannot_go_on_from_segments(library):
    library.engine.caches.create([Segment("prefix", tiny.random_ids(200, 1))], name="segments")
    for ask in (
        lambda: library.chat([Message("user", ("Hello.",))], cache="segments"),
        lambda: library.ask("warranty", cache="segments"),
    ):
        with pytest.raises(ConfigError, match="made from segments"):
            ask()


def test_it_takes_none_of_the_four_cache_points(library, clerk):
    question = [Message("user", tuple(part for n in range(4) for part in (f"Question {n}. ", CachePoint())))]
    answer = library.chat(question, cache=clerk, generation=SHORT).complete()
    assert len(answer.cache_points) == 5
    five = [Message("user", (*question[0].content, "More. ", CachePoint()))]
    with pytest.raises(ConfigError, match="at most 4 cache points, got 5"):
        library.chat(five, cache=clerk)


def test_every_use_counts_its_time_anew(library, clock):
    library.engine.caches.create([Message("system", (SYSTEM,))], name="clerk", ttl=100)
    for use in (
        lambda: library.ask("warranty", cache="clerk", generation=SHORT),
        lambda: library.complete("Which mower?", cache="clerk", generation=SHORT).complete(),
        lambda: library.chat([Message("user", ("Which mower?",))], cache="clerk", generation=SHORT).complete(),
    ):
        clock.now += 99
        assert use().prefix_tokens > 0
    clock.now += 100
    for ask in (
        lambda: library.ask("warranty", cache="clerk"),
        lambda: library.complete("Which mower?", cache="clerk"),
        lambda: library.chat([Message("user", ("Which mower?",))], cache="clerk"),
    ):
        with pytest.raises(CacheHandleError, match="no cache 'clerk'"):
            ask()


def test_one_is_kept_on_the_disk_where_memory_has_no_room(start):
    library = start(automatic=False, memory_bytes=0)
    cache = library.engine.caches.create([Message("system", (SYSTEM,))])
    assert library.chat([Message("user", ("Hello.",))], cache=cache, generation=SHORT).complete().prefix_tokens > 0


def test_threads_and_tasks_go_on_from_one_together(library, clerk):
    def ask(number: int) -> tuple[int, ...]:
        message = Message("user", (f"Which mower has number {number}?",))
        answer = library.chat([message], cache="clerk", policy="prefix", generation=SHORT).complete()
        assert answer.prefix_tokens == whole(clerk)
        return answer.token_ids

    async def ask_all() -> list[tuple[int, ...]]:
        return await asyncio.gather(*(asyncio.to_thread(ask, number) for number in range(6)))

    expected = [ask(number) for number in range(6)]
    assert asyncio.run(ask_all()) == expected
    found: dict[int, tuple[int, ...]] = {}
    threads = [threading.Thread(target=lambda n=n: found.update({n: ask(n)})) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[number] for number in range(6)] == expected


class TestDocuments:
    """One that holds a document of the library goes with it."""

    @pytest.fixture
    def manual(self, library):
        """A named cache with the best hit for the warranty as a passage."""
        [hit] = library.search("How long is the warranty?", k=1)
        source = hit.source
        title = " > ".join(filter(None, (source.title, source.heading)))
        passage = Passage(source.text, title=title, document=source.document)
        instructions = Message("system", (SYSTEM,))
        cache = library.engine.caches.create([instructions, Message("user", (passage,))], name="manual")
        assert cache.built_on
        return source.document

    def ask(self, library: Library) -> int:
        question = [Message("user", ("How long is it?",))]
        return library.chat(question, cache="manual", generation=SHORT).complete().prefix_tokens

    def test_as_long_as_it_is_there_it_is_used(self, library, manual, docs):
        (docs / "another.txt").write_text("Another document that has nothing to do with it.\n")
        library.add(docs)
        assert self.ask(library) > 0

    def test_removing_it_removes_the_cache(self, library, manual):
        library.remove([manual])
        with pytest.raises(CacheHandleError, match="no cache 'manual'"):
            self.ask(library)
        library.prefixes.flush()
        assert library.info().prefix_bytes == 0

    def test_a_later_chunk_of_a_document_is_known_too(self, library, docs):
        (docs / "long.txt").write_text("\n\n".join(f"Paragraph {number} of the long tale." for number in range(30)))
        library.add(docs)
        hits = library.search("long tale", k=100)
        later = next(hit for hit in hits if hit.source.chunk == 1)
        passage = Passage(later.text, title=later.source.title, document=later.source.document)
        library.engine.caches.create([Message("user", (SYSTEM, passage))], name="manual")
        library.remove([later.source.document])
        with pytest.raises(CacheHandleError, match="no cache 'manual'"):
            self.ask(library)

    def test_replacing_it_removes_the_cache(self, library, manual, docs):
        Path(manual).write_text("The warranty of the robot is gone, and so is the battery.\n")
        library.add(docs)
        with pytest.raises(CacheHandleError, match="no cache 'manual'"):
            self.ask(library)

    def test_another_process_that_removes_it_removes_the_cache(self, library, manual, start):
        start(automatic=False).remove([manual])
        with pytest.raises(CacheHandleError, match="no cache 'manual'"):
            self.ask(library)

    def test_one_that_is_left_over_is_refused(self, library, manual, start, monkeypatch):
        """As by a process that is killed when it has just removed the document."""
        other = start(automatic=False)
        monkeypatch.setattr(Home, "revalidate", lambda self: None)
        other.remove([manual])
        with pytest.raises(CacheHandleError, match="holds a document that has been replaced or removed"):
            self.ask(library)
        assert library.engine.caches.list() == []
