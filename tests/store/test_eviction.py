"""The order of eviction, in the rule itself and in both stores that follow it."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragblend.errors import StoreFullError
from ragblend.store.eviction import Candidate, victims
from ragblend.store.memory import MemoryStore
from tests.benchmarks.eviction_study import Trace, replay

candidates = st.lists(
    st.builds(
        Candidate,
        key=st.uuids().map(str),
        nbytes=st.integers(1, 10**9),
        seconds=st.floats(0, 100),
        idle_s=st.floats(0, 10**6),
    ),
    max_size=30,
)


@given(candidates, st.integers(0, 10**10))
def test_enough_goes_and_no_more(found, wanted):
    chosen = victims(found, wanted)
    freed = sum(candidate.nbytes for candidate in chosen)
    assert freed >= wanted or len(chosen) == len(found)
    if chosen:
        assert freed - chosen[-1].nbytes < wanted


@given(st.lists(st.tuples(st.integers(1, 2000), st.integers(1, 10**6)), unique_by=lambda pair: pair[1], max_size=30))
def test_equal_cost_per_byte_is_plain_lru(found):
    equal = [Candidate(str(idle), nbytes, nbytes / 1024, idle) for nbytes, idle in found]
    order = [candidate.idle_s for candidate in victims(equal, 10**12)]
    assert order == sorted(order, reverse=True)
    assert len(order) == len(found)


def test_what_is_cheap_to_compute_again_goes_first():
    cheap, dear = Candidate("cheap", 100, 1.0, 10), Candidate("dear", 100, 2.0, 10)
    assert victims([dear, cheap], 1) == [cheap]
    assert victims([Candidate("dear", 100, 2.0, 30), cheap], 1)[0].key == "dear"  # used too long ago to be dear


def test_of_one_prompt_the_tail_goes_first_and_what_is_to_be_kept_last():
    head, tail = Candidate("head", 100, 0.0, 10, start=0), Candidate("tail", 100, 0.0, 10, start=64)
    kept = Candidate("kept", 100, 0.0, 10_000, kept=True)
    assert [c.key for c in victims([kept, head, tail], 300)] == ["tail", "head", "kept"]


def test_what_weighs_less_goes_as_if_nobody_had_used_it_for_longer():
    light, chunk = Candidate("light", 100, 0.0, 10, weight=1 / 8), Candidate("chunk", 100, 0.0, 79)
    assert victims([chunk, light], 1) == [light]
    assert victims([Candidate("chunk", 100, 0.0, 81), light], 1)[0].key == "chunk"


def test_unknown_costs_count_as_average():
    known = [Candidate("cheap", 100, 1.0, 10), Candidate("dear", 100, 3.0, 10)]
    assert [c.key for c in victims([Candidate("unknown", 100, 0.0, 10), *known], 300)] == ["cheap", "unknown", "dear"]


def test_costs_save_seconds_on_a_zipf_trace():
    """Against plain LRU, on the study's own traces: entries differ in what they cost per byte."""
    for seed in range(3):
        trace = Trace.zipf(seed=seed, entries=400, requests=6_000)
        with_costs, plain = replay(trace, share=0.1), replay(trace, share=0.1, costs=False)
        assert with_costs.seconds < 0.9 * plain.seconds


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class TestMemory:
    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    def open(self, store: MemoryStore, key: str, kv) -> bool:
        reader = store.open(key, kv.token_ids)
        if reader is not None:
            reader.close()
        return reader is not None

    def test_costs_decide(self, make_kv, make_key, clock):
        kvs = [make_kv(number, seconds=seconds) for number, seconds in enumerate((1.0, 9.0, 1.0))]
        store = MemoryStore(2 * kvs[0].nbytes, clock=clock)
        for number, kv in enumerate(kvs):
            clock.now += 1
            store.put(make_key(number), kv)
        assert [store.contains(make_key(number)) for number in range(3)] == [False, True, True]
        clock.now += 1
        store.put(make_key(3), make_kv(3, seconds=5.0))
        assert [store.contains(make_key(number)) for number in (1, 2, 3)] == [True, False, True]

    def test_an_open_reader_keeps_its_entry(self, make_kv, make_key, clock):
        kv = make_kv()
        store = MemoryStore(2 * kv.nbytes, clock=clock)
        store.put(make_key(0), kv)
        reader = store.open(make_key(0), kv.token_ids)
        for number in (1, 2, 3):
            clock.now += 1
            store.put(make_key(number), kv)
            assert store.contains(make_key(0))
            assert store.nbytes() <= store.budget_bytes
        reader.close()
        reader.close()
        assert store.pins() == set()
        store.put(make_key(4), kv)
        assert not store.contains(make_key(0))

    def test_pinned_entries_that_leave_no_room_are_an_error(self, make_kv, make_key):
        kv = make_kv()
        store = MemoryStore(2 * kv.nbytes)
        with store.pinned([make_key(0), make_key(1)]):
            store.put(make_key(0), kv)
            store.put(make_key(1), kv)
            with pytest.raises(StoreFullError, match="in use"):
                store.put(make_key(2), kv)
        store.put(make_key(2), kv)

    def test_down_to_the_low_watermark(self, make_kv, make_key):
        kv = make_kv()
        store = MemoryStore(10 * kv.nbytes, low_watermark=0.5)
        for number in range(11):
            store.put(make_key(number), kv)
        assert store.nbytes() == 5 * kv.nbytes

    def test_reading_refreshes_the_time_to_live(self, make_kv, make_key, clock):
        kv = make_kv()
        store = MemoryStore(10 * kv.nbytes, ttl_s=10, clock=clock)
        store.put(make_key(0), kv)
        store.put(make_key(1), kv)
        for _ in range(3):
            clock.now += 8
            assert self.open(store, make_key(0), kv)
        assert not self.open(store, make_key(1), kv)
        assert store.misses == {"expired": 1}
        store.put(make_key(2), kv)  # makes what has expired go
        assert store.nbytes() == 2 * kv.nbytes
        with contextlib.closing(store.open(make_key(0), kv.token_ids)):
            clock.now += 100
            store.put(make_key(3), kv)
            assert store.contains(make_key(0))
