"""Loading beside computing: what is read when, by whom, and what is left behind."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
import torch

from ragblend.blend.blender import Blended, blend
from ragblend.blend.loader import Loader
from ragblend.blend.policies import policy_named
from ragblend.blend.stored import StoredLayers
from ragblend.errors import CorruptEntryError, GenerationCancelled
from ragblend.kernels.layout import LayerKV
from ragblend.models.rows import RowRun
from ragblend.prompt import Prompt, Segment
from ragblend.store.base import WrappedReader, read_whole
from ragblend.store.catalogue import Catalogue
from ragblend.store.disk import DiskStore
from ragblend.store.memory import MemoryStore
from ragblend.testing import numbered_key, random_kv
from tests import tiny

CHUNKS = [tiny.random_ids(30, seed) for seed in range(3)]
LAYERS = 4
PATIENCE_S = 30


class WatchedReader(WrappedReader):
    def __init__(self, reader, key, store):
        super().__init__(reader)
        self.key = key
        self.store = store
        self.closed = False

    def layer(self, index: int) -> LayerKV:
        assert not self.closed
        self.store.reads.append((index, self.key, threading.current_thread()))
        self.store.before(self.key, index)
        return super().layer(index)

    def close(self) -> None:
        super().close()
        self.closed = True


class WatchedStore(MemoryStore):
    """Notes who reads what, and lets a test act before a layer is read."""

    def __init__(self) -> None:
        super().__init__(budget_bytes=1 << 30)
        self.reads: list[tuple[int, str, threading.Thread]] = []
        self.readers: list[WatchedReader] = []
        self.before = lambda key, index: None

    def open(self, key, token_ids):
        reader = super().open(key, token_ids)
        if reader is None:
            return None
        self.readers.append(WatchedReader(reader, key, self))
        return self.readers[-1]


@pytest.fixture
def store(tiny_engine):
    made = WatchedStore()
    for number, kv in enumerate(tiny_engine.prefill(CHUNKS)):
        made.put(str(number), kv)
    yield made
    assert all(reader.closed for reader in made.readers)
    assert made.pins() == set()
    assert loading_threads() == []


@pytest.fixture(autouse=True)
def slow_source(monkeypatch):
    """Whatever is read counts as slow, so that a thread loads ahead."""
    monkeypatch.setattr("ragblend.blend.lane.FAST_SOURCE", float("inf"))


def loading_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("ragblend-loader")]


@pytest.fixture
def prompt(tiny_engine) -> Prompt:
    chunks = [Segment("chunk", ids, key=str(number)) for number, ids in enumerate(CHUNKS)]
    return Prompt((Segment("prefix", tiny_engine.anchor_ids), *chunks, Segment("suffix", tiny.random_ids(9, 99))))


@pytest.fixture
def run(tiny_engine, prompt, store):
    def blended(policy: str = "none", ratio: float = 0.2, **options) -> Blended:
        return blend(
            tiny_engine.adapter,
            tiny_engine.anchor,
            prompt,
            policy=policy_named(policy),
            ratio=ratio,
            store=store,
            **options,
        )

    return blended


@pytest.mark.parametrize("policy", ["none", "leading", "hkvd", "query"])
def test_every_layer_of_every_chunk_is_read_once_in_order_and_only_the_first_by_who_computes(store, run, policy):
    run(policy)
    assert [(layer, key) for layer, key, _ in store.reads] == [(n, key) for n in range(LAYERS) for key in "012"]
    assert {layer for layer, _, thread in store.reads if thread is threading.current_thread()} == {0}


def test_on_a_cpu_a_fast_source_needs_no_thread(store, run, monkeypatch):
    expected = run("query").logits
    monkeypatch.setattr("ragblend.blend.lane.FAST_SOURCE", 0.0)
    store.reads.clear()
    blended = run("query")
    assert {thread for *_, thread in store.reads} == {threading.current_thread()}
    assert len(store.reads) == LAYERS * len(CHUNKS)
    assert torch.equal(blended.logits, expected)
    assert blended.hidden_load_s < 0.1 * blended.load_s


def test_later_layers_are_read_while_the_first_is_computed(store, run, monkeypatch):
    """The first layer is computed only once the last one is read: reading one by one would never get there."""
    all_read = threading.Event()
    store.before = lambda key, index: all_read.set() if (key, index) == ("2", LAYERS - 1) else None

    class WaitingRun(RowRun):
        def written(self, layer, *_):
            assert all_read.wait(PATIENCE_S)

    monkeypatch.setattr("ragblend.blend.policies.base.RowRun", WaitingRun)
    run("none")
    assert all_read.is_set()


def test_what_waits_to_be_placed_has_a_limit(tiny_engine, store, run, monkeypatch):
    """With room for one layer, one is read while the first is computed, and no other."""
    adapter = tiny_engine.adapter
    layer_bytes = sum(map(len, CHUNKS)) * adapter.canvas(1).keys(0).nbytes * 2
    monkeypatch.setattr("ragblend.blend.lane.READ_AHEAD_BYTES", layer_bytes + 2000)  # the anchor's rows come on top
    read = [threading.Event() for _ in range(LAYERS)]
    store.before = lambda key, index: read[index].set()

    class WaitingRun(RowRun):
        def written(self, layer, *_):
            assert read[min(layer + 1, LAYERS - 1)].wait(PATIENCE_S)
            assert layer + 2 >= LAYERS or not read[layer + 2].wait(0.02)

    monkeypatch.setattr("ragblend.blend.policies.base.RowRun", WaitingRun)
    run("none")
    assert all(event.is_set() for event in read)


@pytest.mark.parametrize("policy", ["none", "hkvd", "query"])
def test_who_computes_places(run, monkeypatch, policy):
    """The thread beside only reads: on a CPU the cores that place are those that compute."""
    placing = []
    place = StoredLayers.place

    def watched(self, *arguments):
        placing.append(threading.current_thread())
        place(self, *arguments)

    monkeypatch.setattr(StoredLayers, "place", watched)
    run(policy)
    assert placing == [threading.current_thread()] * LAYERS


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads as Linux tells them")
def test_reading_wakes_no_threads_of_torchs(tmp_path):
    """They would take the cores that compute. torch has its threads for each thread that asks for them."""

    def threads() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    def woken() -> tuple[int, int]:
        before = threads()
        assert read_whole(reader, kv.token_ids).nbytes == kv.nbytes
        by_reading = threads() - before
        torch.aminmax(kv.layers[0].keys)
        return by_reading, threads() - before

    kv = random_kv(tokens=4096, layers=2)
    assert kv.layers[0].keys.numel() >= 2 * 32768  # torch leaves less than that to one thread
    with closing(Catalogue(tmp_path / "catalogue.db")) as catalogue, closing(DiskStore(tmp_path, catalogue)) as disk:
        disk.put(numbered_key(), kv)
        reader = disk.open(numbered_key(), kv.token_ids)
        torch.set_num_threads(2)
        try:
            with closing(reader), ThreadPoolExecutor(1) as executor:
                assert executor.submit(woken).result() == (0, 1)
        finally:
            torch.set_num_threads(1)


def test_the_request_waits_for_a_layer_that_comes_late(store, run):
    expected = run("query").logits
    store.before = lambda key, index: threading.Event().wait(0.02) and None
    late = run("query")
    assert torch.equal(late.logits, expected)
    assert late.load_s > 0


class TestADamagedLayer:
    @pytest.fixture(autouse=True)
    def _damaged(self, store):
        def before(key, index):
            if (key, index) == ("1", 2):
                raise CorruptEntryError("layer 2 is not what was written")

        store.before = before

    def test_is_a_miss_and_the_request_goes_on_without_the_chunk(self, store, run):
        blended = run("none")
        assert (blended.hits, blended.misses, store.misses["corrupt"]) == (2, 1, 1)
        assert not store.contains("1")

    def test_no_thread_reads_when_the_entry_is_given_up(self, store, run, monkeypatch):
        running = []
        monkeypatch.setattr(store, "discard", lambda *_: running.extend(loading_threads()))
        run("none")
        assert running == []

    def test_the_failure_keeps_nothing_of_the_request(self, run, monkeypatch):
        loaders: list[weakref.ref[Loader]] = []

        class Watched(Loader):
            def __init__(self, *arguments):
                super().__init__(*arguments)
                loaders.append(weakref.ref(self))

        monkeypatch.setattr("ragblend.blend.blender.Loader", Watched)
        gc.disable()
        try:
            run("none")
            assert [reference() for reference in loaders] == [None, None]
        finally:
            gc.enable()


def test_an_unexpected_error_reaches_the_caller(store, run):
    def before(key, index):
        if index == 1:
            raise ZeroDivisionError("nobody expects this")

    store.before = before
    with pytest.raises(ZeroDivisionError):
        run("none")


@pytest.mark.parametrize("policy", ["none", "query"])
def test_a_cancelled_request_leaves_nothing_running(store, run, policy):
    asked = []

    def cancelled() -> bool:
        asked.append(None)
        return len(asked) == 3

    with pytest.raises(GenerationCancelled):
        run(policy, cancelled=cancelled)
    assert loading_threads() == []


def test_a_cancelled_request_reads_no_further_than_the_chunk_it_is_reading(store, run):
    reading = threading.Event()
    go_on = threading.Event()

    def before(key, index):
        if index == 1:
            reading.set()
            assert go_on.wait(PATIENCE_S)

    store.before = before

    def cancelled() -> bool:
        if not store.reads:
            return False
        assert reading.wait(PATIENCE_S)
        threading.Timer(0.05, go_on.set).start()
        return True

    with pytest.raises(GenerationCancelled):
        run("none", cancelled=cancelled)
    assert [(layer, key) for layer, key, _ in store.reads if layer > 0] == [(1, "0")]


def test_without_stored_kv_there_is_no_thread(store, run, monkeypatch):
    monkeypatch.setattr("ragblend.blend.lane.ReadAhead", None)
    assert run("full").cached == 0


def test_loading_is_told_apart_from_waiting_for_it(run):
    blended = run("none")
    assert blended.load_s >= 0
    assert blended.hidden_load_s >= 0
