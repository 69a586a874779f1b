"""Precomputing in the background: after answers, never during them, and never in their way."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest

from ragblend.config import GenerationSettings, ReuseSettings
from ragblend.errors import ConfigError, GenerationCancelled, LibraryBusyError, StoreFullError
from ragblend.library import layout
from ragblend.library.learning import Learner
from ragblend.library.library import Library
from ragblend.library.lock import writing
from ragblend.library.precomputed import Text
from ragblend.prompt import Message, Passage

ROOT = Path(__file__).parents[2]
SHORT = GenerationSettings(max_tokens=3)
LONG = GenerationSettings(max_tokens=2000)
WARRANTY = (
    "The warranty of the robot lasts two years, covers all of its parts, and does not end when the robot is sold again."
)
BATTERY = (
    "The battery of the robot is charged in ninety minutes at the station, which has to stand in a dry, shaded place."
)
BLADES = (
    "Blades are changed every spring by the gardener, who also cleans the deck and sharpens all that is left of them."
)


def stuffed(*texts: str, question: str = "How long?") -> list[Message]:
    context = "\n\n".join(texts)
    return [
        Message("system", ("You answer questions about robots. You never invent anything, and you are brief. " * 2,)),
        Message("user", (f"Context:\n-----\n{context}\n-----\nAnswer the query, from the context only: {question}",)),
    ]


def passages(*texts: str) -> list[Message]:
    return [Message("user", (*map(Passage, texts), "How long?"))]


def ask(library: Library, messages: list[Message], generation: GenerationSettings = SHORT):
    return library.chat(messages, generation=generation).complete()


def known(library: Library) -> list[str]:
    return [text for (text,) in library.catalogue.rows("SELECT text FROM precomputed ORDER BY id")]


@pytest.fixture
def learning(open_library) -> Library:
    return open_library(reuse=ReuseSettings(learn="paragraphs"))


class TestWhatIsLearned:
    def test_passages_by_themselves(self, library):
        answer = ask(library, passages(WARRANTY, BATTERY))
        assert (answer.misses, answer.learning) == (2, len(WARRANTY) + len(BATTERY))
        assert library.wait(60)
        again = ask(library, passages(BATTERY, WARRANTY))
        assert (again.hits, again.misses, again.learning) == (2, 0, 0)
        assert library.info().learning.learned == 2

    def test_passages_with_a_title_as_they_stand(self, library):
        message = [Message("user", (Passage(WARRANTY, title="Warranty"), "How long?"))]
        ask(library, message)
        assert library.wait(60)
        assert known(library) == [f"[Warranty]\n{WARRANTY}\n\n"]
        assert ask(library, message).hits == 1
        assert ask(library, [Message("user", (f"[Warranty]\n{WARRANTY}\n\nHow long?",))]).hits == 1
        assert library.forget(known(library)) == 1

    def test_no_text_unless_asked_for(self, library):
        assert ask(library, stuffed(WARRANTY, BATTERY)).learning == 0
        assert known(library) == []

    def test_paragraphs_but_neither_instructions_nor_question(self, learning):
        ask(learning, stuffed(WARRANTY, BATTERY))
        assert learning.wait(60)
        assert known(learning) == [WARRANTY, BATTERY]

    def test_paragraphs_are_reused_whatever_their_order_and_neighbours(self, learning):
        ask(learning, stuffed(WARRANTY, BATTERY))
        assert learning.wait(60)
        answer = ask(learning, stuffed(BLADES, BATTERY, WARRANTY, question="And the blades?"))
        assert (answer.hits, answer.learning) == (2, len(BLADES))
        assert learning.wait(60)
        context = (BATTERY, BLADES, WARRANTY)
        again = ask(learning, stuffed(*context))
        assert (again.hits, again.matched_tokens, again.learning) == (3, sum(map(len, context)), 0)

    def test_only_what_is_not_known_yet(self, learning):
        learning.precompute([f"{WARRANTY}\n\n{BATTERY}"])
        answer = ask(learning, stuffed(WARRANTY, BATTERY, BLADES))
        assert (answer.hits, answer.learning) == (1, len(BLADES))

    def test_nothing_that_is_not_worth_a_chunk(self, learning):
        assert ask(learning, passages("Two years.")).learning == 0

    def test_what_was_evicted_or_lost(self, library):
        library.precompute([WARRANTY, BATTERY])
        library.store.delete(library.store.entries()[0].key)
        answer = ask(library, stuffed(WARRANTY, BATTERY))
        assert (answer.hits, answer.misses) == (1, 1)
        assert answer.learning > 0
        assert library.wait(60)
        assert ask(library, stuffed(WARRANTY, BATTERY)).hits == 2
        assert library.info().texts == 2

    def test_a_document_s_chunk_without_owning_it(self, library, docs):
        """It is computed again, but it still goes with its document."""
        library.add([docs])
        [hit] = library.search("warranty", k=1)
        message = [Message("user", (Passage(hit.text, title=hit.source.title), "How long?"))]
        library.store.delete(hit.segment.key)
        assert ask(library, message).misses == 1
        assert library.wait(60)
        assert ask(library, message).hits == 1
        assert library.info().texts == 0
        library.remove([docs])
        assert library.info().kv_bytes == 0

    @pytest.mark.parametrize("title", [True, False])
    def test_a_later_chunk_of_a_document_behind_what_it_was_behind(self, library, tmp_path, title):
        words = "\n\n".join(f"Paragraph {number} tells of the {number} pumps." for number in range(20))
        (tmp_path / "pumps.md").write_text(f"# Pumps\n\n{words}" if title else words)
        library.add([tmp_path / "pumps.md"])
        hit = next(hit for hit in library.search("pumps", k=100) if hit.source.chunk == 1)
        message = [Message("user", (Passage(hit.text, title=hit.source.title), "How many?"))]
        assert ask(library, message).hits == 1
        library.store.delete(hit.segment.key)
        assert ask(library, message).misses == 1
        assert library.wait(60)
        assert library.store.contains(hit.segment.key)
        assert library.verify(audit=100).ok
        assert library.info().texts == 0

    def test_nothing_where_it_is_switched_off(self, open_library):
        library = open_library(reuse=ReuseSettings(learn="off"))
        assert ask(library, passages(WARRANTY)).learning == 0

    def test_nothing_in_a_read_only_library(self, library, open_library):
        library.precompute([BATTERY])
        reader = open_library(read_only=True, reuse=ReuseSettings(learn="paragraphs"))
        assert ask(reader, [*passages(WARRANTY), *stuffed(BLADES)]).learning == 0
        assert reader.wait(0)

    def test_nothing_from_a_cancelled_stream(self, library):
        with library.chat(passages(WARRANTY), generation=LONG) as stream:
            next(stream)
        assert stream.answer.finish_reason == "cancelled"
        assert stream.answer.learning == 0
        assert library.wait(0)

    def test_no_more_than_fits_into_the_queue(self, open_library):
        library = open_library(reuse=ReuseSettings(learn_tokens=len(WARRANTY) + 10))
        assert ask(library, passages(WARRANTY, BATTERY)).learning == len(WARRANTY)
        assert library.wait(60)
        assert (library.info().learning.learned, library.info().learning.dropped) == (1, 1)


class TestWhen:
    def test_not_while_an_answer_is_running(self, library):
        running = library.chat([Message("user", ("Hi",))], generation=LONG)
        next(running)
        ask(library, passages(WARRANTY))
        assert not library.wait(0.3)
        assert known(library) == []
        with running:
            pass
        assert library.wait(60)
        assert known(library) == [WARRANTY]

    def test_what_is_being_computed_gives_way_to_an_answer(self, open_library, engine):
        """Learning stops before the next layer and begins anew after the answer."""
        begun, go_on = threading.Event(), threading.Event()

        class Slow:
            def __getattr__(self, name):
                return getattr(engine, name)

            def prefill(self, chunks, *, contexts, cancelled):
                def slowly():
                    begun.set()
                    go_on.wait(30)
                    return cancelled()

                yield from engine.prefill(chunks, cancelled=slowly)

        library = open_library(engine=Slow())
        ask(library, passages(WARRANTY))
        assert begun.wait(30)
        with library.chat(passages(WARRANTY), generation=LONG) as stream:
            next(stream)
            begun.clear()
            go_on.set()
            assert not begun.wait(0.3)  # it has stopped, and does not try again
            assert known(library) == []
        assert library.wait(60)
        assert known(library) == [WARRANTY]
        assert library.info().learning.failed == 0

    def test_no_thread_waits_for_work(self, library):
        ask(library, passages(WARRANTY))
        assert library.wait(60)
        for thread in threads():
            thread.join(60)
        assert threads() == []

    def test_a_stream_that_is_dropped_does_not_hold_it_up_for_ever(self, library):
        stream = library.chat([Message("user", ("Hi",))], generation=LONG)
        next(stream)
        ask(library, passages(WARRANTY))
        del stream
        gc.collect()
        assert library.wait(60)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "ragblend-learning"]


class TestClosing:
    def test_does_not_wait_for_what_is_in_the_queue(self, open_library, engine):
        begun = threading.Event()

        class Endless:
            def __getattr__(self, name):
                return getattr(engine, name)

            def prefill(self, chunks, *, contexts, cancelled):
                begun.set()
                while not cancelled():
                    time.sleep(0.001)
                yield from engine.prefill(chunks, cancelled=cancelled)

        library = open_library(engine=Endless())
        ask(library, passages(WARRANTY, BATTERY))
        assert begun.wait(30)
        library.close()
        assert threads() == []
        assert library.wait(0)

    def test_a_library_that_is_freed_takes_its_thread_along(self, open_library, engine, embedder):
        library = Library.open(None, engine=engine, embedder=embedder)
        ask(library, passages(WARRANTY))
        assert library.wait(60)
        freed = weakref.ref(library)
        library.catalogue.close()
        del library
        gc.collect()
        assert freed() is None
        assert threads() == []

    def test_the_end_of_the_program_does_not_wait_either(self):
        script = """
import time
from tests.library import conftest
from ragblend.config import GenerationSettings
from ragblend.library.library import Library
from ragblend.prompt import Message, Passage

class Endless:
    def __init__(self, engine):
        self._engine = engine
    def __getattr__(self, name):
        return getattr(self._engine, name)
    def prefill(self, chunks, *, contexts, cancelled):
        while not cancelled():
            time.sleep(0.001)
        yield from self._engine.prefill(chunks, cancelled=cancelled)

library = Library.open(None, engine=Endless(conftest.tiny_engine()))
message = Message("user", (Passage("The warranty of the robot lasts two years."), "How long?"))
print(library.chat([message], generation=GenerationSettings(max_tokens=2)).complete().learning)
"""
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, cwd=ROOT)
        assert (done.returncode, done.stdout, done.stderr) == (0, "42\n", "")


class TestFaults:
    """Counted and logged; no answer ever fails of them."""

    @pytest.fixture
    def fails_with(self, open_library, engine):
        def make(error: Exception) -> Library:
            class Failing:
                def __getattr__(self, name):
                    return getattr(engine, name)

                def prefill(self, chunks, *, contexts, cancelled):
                    raise error
                    yield

            return open_library(engine=Failing())

        return make

    def test_an_error(self, fails_with, caplog):
        library = fails_with(RuntimeError("out of memory"))
        with caplog.at_level(logging.WARNING, "ragblend"):
            answer = ask(library, passages(WARRANTY, BATTERY))
            assert library.wait(60)
        assert answer.finish_reason == "length"
        report = library.info().learning
        assert (report.learned, report.dropped, report.failed, report.error) == (0, 0, 2, "out of memory")
        assert caplog.messages == ["a text could not be learned: out of memory"] * 2

    def test_a_full_disk_is_met_once_an_answer(self, fails_with):
        library = fails_with(StoreFullError("no room left"))
        ask(library, passages(WARRANTY, BATTERY, BLADES))
        assert library.wait(60)
        assert (library.info().learning.dropped, library.info().learning.failed) == (2, 1)

    def test_another_writer(self, library, monkeypatch, caplog):
        monkeypatch.setattr("ragblend.library.lock.BUSY_TIMEOUT_S", 0.05)
        with caplog.at_level(logging.WARNING, "ragblend"), writing(library.folder / layout.WRITER_LOCK):
            ask(library, passages(WARRANTY))
            assert library.wait(60)
        assert (library.info().learning.dropped, library.info().learning.failed) == (1, 0)
        assert caplog.messages == []


class TestQueue:
    """The learner by itself."""

    @staticmethod
    def text(name: str, tokens: int = 10) -> Text:
        return Text(name, tuple(range(tokens)), name)

    def test_takes_each_text_once(self):
        done = []
        learner = Learner(lambda text, cancelled: done.append(text.text), limit_tokens=25)
        learner.answer_started()
        assert learner.submit([self.text("a"), self.text("a"), self.text("b"), self.text("c")]) == 20
        assert learner.submit([self.text("b")]) == 0
        learner.answer_ended()
        assert learner.wait(10)
        assert done == ["a", "b"]
        assert learner.report.dropped == 1

    def test_goes_on_where_it_had_to_give_way(self):
        tries = []

        def compute(text, cancelled):
            tries.append(text.text)
            if len(tries) == 1:
                raise GenerationCancelled("an answer came")

        learner = Learner(compute, limit_tokens=100)
        learner.submit([self.text("a"), self.text("b")])
        assert learner.wait(10)
        assert tries == ["a", "a", "b"]
        assert (learner.report.learned, learner.report.failed) == (2, 0)

    def test_counts_what_another_writer_kept_it_from(self):
        def compute(text, cancelled):
            raise LibraryBusyError("another process is writing")

        learner = Learner(compute, limit_tokens=100)
        learner.submit([self.text("a")])
        assert learner.wait(10)
        assert (learner.report.dropped, learner.report.failed, learner.report.error) == (1, 0, "")

    def test_after_closing_takes_nothing(self):
        learner = Learner(lambda text, cancelled: None, limit_tokens=100)
        learner.close()
        learner.close()
        assert learner.submit([self.text("a")]) == 0
        assert learner.wait(0)

    def test_wait_gives_up_in_time(self):
        go_on = threading.Event()
        learner = Learner(lambda text, cancelled: go_on.wait(30) and None, limit_tokens=100)
        learner.submit([self.text("a")])
        assert not learner.wait(0.05)
        go_on.set()
        assert learner.wait(10)


@pytest.mark.parametrize("wrong", [{"learn": "everything"}, {"learn_tokens": -1}])
def test_settings_out_of_range(wrong):
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))} must"):
        ReuseSettings(**wrong)
