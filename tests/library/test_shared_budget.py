"""One budget in memory and one on the disk for both: the chunks of a library and the prefixes that it keeps."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from ragblend.config import ChunkSettings, DiskLimits, GenerationSettings, StoreSettings
from ragblend.errors import LibraryBusyError
from ragblend.library.library import Library
from ragblend.prompt import CachePoint, Message
from tests.library.conftest import CHUNK_TOKENS
from tests.store.measuring import MeasuringFiles

SHORT = GenerationSettings(max_tokens=3)
SYSTEM = "You are the clerk of a garden shop. " * 8


@pytest.fixture
def clock() -> Callable[[], float]:
    """Files have real times, and runs are compared with them."""
    return time.time


def chat(library: Library, question: str, *points: CachePoint):
    messages = [Message("system", (SYSTEM, *points)), Message("user", (question,))]
    return library.chat(messages, generation=SHORT).complete()


class TestDisk:
    @pytest.fixture
    def disk(self) -> MeasuringFiles:
        """What lies on the disk in the namespace's folders, at every moment."""
        return MeasuringFiles()

    @pytest.fixture
    def limited(self, start, disk, many_docs) -> Callable[[float], Library]:
        """Opens a library whose budget is so many times what its chunks take."""
        measured = start("measured", chunk=ChunkSettings(CHUNK_TOKENS))
        measured.add(many_docs)

        def open_it(share: float) -> Library:
            budget = DiskLimits(budget=int(share * measured.store.nbytes()), low_watermark=1.0)
            library = start(engine=measured.engine, files=disk, store=StoreSettings(disk=budget))
            disk.folders = library.store.room.quota.folders
            return library

        return open_it

    def test_is_never_over_the_budget_and_both_make_room(self, limited, disk, many_docs):
        library = limited(1.2)
        budget = library.info().store.disk_budget
        library.add(many_docs)
        for path in library.store.folder.glob("*/*"):
            os.utime(path, (time.time() - 3600, time.time() - 3600))
        for number in range(6):
            library.ask(f"colour of machine {number}", k=3, generation=SHORT)
            chat(library, f"What weighs {number} kilograms?")
            library.prefixes.flush()
            info = library.info()
            assert info.store.disk_bytes <= budget
            assert info.kv_bytes + info.prefix_bytes <= budget
        assert 0 < disk.most <= budget
        assert library.info().store.evicted > 0
        assert library.prefixes.statistics().evicted > 0
        assert library.info().prefix_bytes == library.prefixes.statistics().disk_bytes > 0
        assert library.verify().ok
        library.repair()
        assert library.info().store.disk_bytes <= budget
        kept = [path.stem for path in library._shelf.store.folder.glob("*/*")]
        rows = library.catalogue.rows("SELECT key FROM prefix_runs WHERE namespace = ?", library.namespace)
        assert sorted(kept) == sorted(key for (key,) in rows)  # an evicted run leaves no row behind

    def test_chunks_are_no_less_served_after_prefixes_took_their_room(self, limited, many_docs):
        library = limited(0.8)
        library.add(many_docs)
        for number in range(4):
            question = f"colour of machine {number}"
            expected = library.ask(question, k=3, policy="full", generation=SHORT)
            answer = library.ask(question, k=3, ratio=1.0, generation=SHORT)
            library.prefixes.flush()
            assert answer.token_ids == expected.token_ids
            assert answer.hits + answer.misses == 3

    def test_indexing_takes_room_from_prefixes_that_nobody_used_since(self, limited, many_docs):
        library = limited(1.01)
        chat(library, "Which mower?")
        library.prefixes.flush()
        assert library.info().prefix_bytes > 0
        library.add(many_docs)
        assert library.info().prefix_bytes == 0
        assert library.info().store.evicted == 0
        assert chat(library, "Which trimmer?").prefix_tokens > 0  # memory has it still
        library.close()
        assert chat(limited(1.01), "Which trimmer?").prefix_tokens <= len(library.engine.template.prefix_ids)

    def test_a_time_to_live_outlasts_the_chunks(self, limited, many_docs):
        library = limited(1.01)
        point = CachePoint("1h")
        chat(library, "Which mower?", point)
        library.prefixes.flush()
        library.add(many_docs)
        assert library.info().store.evicted > 0
        library.close()
        assert chat(limited(1.01), "Which trimmer?", point).cache_points[0].read_tokens > len(SYSTEM) - 16

    def test_two_processes_keep_to_it_together(self, limited, disk, many_docs):
        first, second = limited(1.2), limited(1.2)  # each measures and evicts by itself
        budget = first.info().store.disk_budget
        first.add(many_docs)
        for number in range(4):
            for library in (first, second):
                chat(library, f"{number}: which machine weighs {number} kilograms? " * 3)
                library.prefixes.flush()
        assert 0 < disk.most <= budget
        assert first.prefixes.statistics().failed_writes == second.prefixes.statistics().failed_writes == 0
        assert first.verify().ok

    def test_while_another_process_writes_nothing_is_kept_on_the_disk_and_nobody_waits(self, limited, many_docs):
        library = limited(2.0)
        library.add(many_docs)
        tries = []

        @contextmanager
        def busy() -> Iterator[None]:
            tries.append(1)
            raise LibraryBusyError("another process is writing")
            yield

        library.store.exclusive = busy
        for question in ("Which mower?", "Which trimmer?"):
            answer = chat(library, question)
            library.prefixes.flush()
        assert answer.prefix_tokens > 0
        found = library.prefixes.statistics()
        assert found.failed_writes > len(tries) == 1  # after the first it is left alone for a while
        assert (found.disk_bytes, found.prefixes > 0) == (0, True)


class TestMemory:
    def test_is_never_over_the_budget_and_both_make_room(self, start, many_docs):
        measured = start("measure", store=StoreSettings(memory_budget=10**9))
        measured.add(many_docs)
        measured.ask("colour of machine", k=6, policy="none", generation=SHORT)
        budget = measured.store.memory.nbytes()
        library = start("limited", engine=measured.engine, store=StoreSettings(memory_budget=budget))
        library.add(many_docs)
        most = 0
        for number in range(8):
            library.ask(f"colour of machine {number}", k=4, policy="none", generation=SHORT)
            chat(library, f"What weighs {number} kilograms?")
            most = max(most, library.prefixes.statistics().memory_bytes)
            assert library.prefixes.statistics().memory_bytes <= library.store.memory.nbytes() <= budget
        assert most > 0
        assert library.prefixes.statistics().memory_budget == budget
        assert library.store.memory.pins() == set()

    def test_goes_with_the_library(self, start):
        library = start(store=StoreSettings(memory_budget=10**9))
        chat(library, "Which mower?")
        memory = library.store.memory
        assert memory.nbytes() == library.prefixes.statistics().memory_bytes > 0
        library.engine.caches.clear()
        assert memory.nbytes() == 0


def test_threads_that_ask_index_clear_and_name_caches_together(start, many_docs, tmp_path):
    """Within both budgets, with the answers of each alone."""
    measured = start("measured", chunk=ChunkSettings(CHUNK_TOKENS))
    measured.add(many_docs)
    size = measured.store.nbytes()
    store = StoreSettings(memory_budget=size // 2, disk=DiskLimits(budget=size))
    library = start(engine=measured.engine, store=store)
    questions = [f"Which machine weighs {number} kilograms?" for number in range(6)]
    messages = [[Message("system", (SYSTEM,)), Message("user", (question,))] for question in questions]

    def answer(number: int, policy: str) -> tuple[int, ...]:
        return library.chat(messages[number], policy=policy, generation=SHORT).complete().token_ids

    expected = [answer(number, "full") for number in range(6)]
    wrong: list[int] = []
    failed: list[BaseException] = []

    def ask(seed: int) -> None:
        order = random.Random(seed).sample(range(6), 6)
        wrong.extend(number for number in order if answer(number, "prefix") != expected[number])

    def index(_: int) -> None:
        for _ in range(3):
            library.add(many_docs)
            library.remove([many_docs])

    def look_after(_: int) -> None:
        caches = library.engine.caches
        for number in range(3):
            named = caches.create([Message("system", (f"{number}: {SYSTEM}",))])
            library.chat([Message("user", ("Hello.",))], cache=named, generation=SHORT).complete()
            caches.delete(named)
            caches.clear(namespace=library.namespace)

    def work(job: Callable[[int], None], seed: int) -> None:
        try:
            job(seed)
        except BaseException as error:
            failed.append(error)

    jobs = [(ask, 0), (ask, 1), (ask, 2), (index, 0), (look_after, 0)]
    threads = [threading.Thread(target=work, args=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    library.prefixes.flush()
    assert (wrong, failed) == ([], [])
    assert library.store.memory.nbytes() <= size // 2
    assert library.info().store.disk_bytes <= size
    assert library.store.memory.pins() == set()
    assert library.verify().ok
