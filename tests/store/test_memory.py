"""The byte budget of the memory store, and whose memory it keeps entries in."""

from __future__ import annotations

import pytest
import torch

from ragblend.errors import ConfigError, StoreFullError
from ragblend.kernels.layout import LayerKV
from ragblend.store.base import ChunkKV
from ragblend.store.device import DeviceStore
from ragblend.store.eviction import Candidate
from ragblend.store.memory import MemoryStore


def test_the_least_recently_opened_entry_makes_room(make_kv, make_key):
    kv = make_kv()
    store = MemoryStore(2 * kv.nbytes)
    store.put(make_key(1), kv)
    store.put(make_key(2), kv)
    store.open(make_key(1), kv.token_ids)
    store.put(make_key(3), kv)
    assert [store.contains(make_key(number)) for number in (1, 2, 3)] == [True, False, True]
    assert store.nbytes() == 2 * kv.nbytes


def test_an_entry_over_the_budget_is_refused_and_evicts_nothing(make_kv, make_key):
    small, large = make_kv(), make_kv(tokens=100)
    store = MemoryStore(small.nbytes)
    store.put(make_key(1), small)
    with pytest.raises(StoreFullError, match=f"{large.nbytes:,} bytes"):
        store.put(make_key(2), large)
    assert store.contains(make_key(1))


def test_a_budget_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="memory budget"):
        MemoryStore(0)
    with pytest.raises(ConfigError, match="device budget"):
        DeviceStore(0, "cpu")


def test_what_another_store_has_read_is_kept_as_it_is(make_kv, make_key):
    """Neither checked nor copied again; what is put is both."""
    kv = make_kv()
    store = MemoryStore(1_000_000, codec="int8")
    store.keep(make_key(1), kv)
    store.put(make_key(2), kv)
    kept, put = (store.open(make_key(number), kv.token_ids).layer(0) for number in (1, 2))
    assert kept.keys.data_ptr() == kv.layers[0].keys.data_ptr()
    assert (kept.codec, put.codec) == ("raw", "int8")


def test_the_memory_is_the_devices(make_kv, make_key):
    kv = make_kv()
    store = DeviceStore(1_000_000, "meta")
    store.keep(make_key(), kv)
    assert {tensor.device.type for tensor in store.open(make_key(), kv.token_ids).layer(0).tensors} == {"meta"}
    assert store.nbytes() == kv.nbytes


def test_an_entry_for_which_there_is_no_memory_is_refused(make_key):
    endless = torch.zeros(1, 1, 1).expand(1, 1 << 50, 1 << 10)
    store = MemoryStore(1 << 63)
    with pytest.raises(StoreFullError, match="no memory for an entry of"):
        store.keep(make_key(), ChunkKV((1,), (LayerKV(endless, endless),)))
    assert store.nbytes() == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to lock pages for")
def test_pages_are_locked_for_a_gpu_only():
    with pytest.raises(ConfigError, match="page-locked for a GPU, and there is none"):
        MemoryStore(1_000_000, page_locked=True)


class Owner:
    """Keeps entries beside chunks. kept: keys that go last. held: keys that must stay."""

    def __init__(self, kept: tuple[str, ...] = (), held: tuple[str, ...] = (), idle_s: float = 0.0) -> None:
        self.kept, self.held, self.idle_s = kept, held, idle_s

    def candidates(self, sizes):
        free = (key for key in sizes if key not in self.held)
        return [Candidate(key, sizes[key], 0.0, self.idle_s, key in self.kept) for key in free]


class TestOwners:
    """Entries of another kind share the budget with chunks, and one order of eviction."""

    def test_what_nobody_used_for_longest_makes_room_whosever_it_is(self, make_kv, make_key):
        kv, clock = make_kv(), [0.0]
        store = MemoryStore(2 * kv.nbytes, clock=lambda: clock[0])
        store.put(make_key(1), kv)
        clock[0] = 10.0
        store.keep(make_key(2), kv, Owner(idle_s=5.0))
        store.keep(make_key(3), kv, Owner(idle_s=1.0))  # the chunk has been idle for 10
        assert [store.contains(make_key(number)) for number in (1, 2, 3)] == [False, True, True]
        store.put(make_key(4), kv)
        assert [store.contains(make_key(number)) for number in (2, 3, 4)] == [False, True, True]
        assert store.nbytes() == 2 * kv.nbytes

    def test_what_is_to_be_kept_goes_last(self, make_kv, make_key):
        kv = make_kv()
        store = MemoryStore(2 * kv.nbytes)
        store.keep(make_key(1), kv, Owner(kept=(make_key(1),), idle_s=1e9))
        for number in (2, 3, 4):
            store.put(make_key(number), kv)
        assert [store.contains(make_key(number)) for number in (1, 2, 3, 4)] == [True, False, False, True]

    def test_what_is_held_never_goes(self, make_kv, make_key):
        kv = make_kv()
        store = MemoryStore(kv.nbytes)
        store.keep(make_key(1), kv, Owner(held=(make_key(1),)))
        with pytest.raises(StoreFullError, match="in use"):
            store.put(make_key(2), kv)
        with pytest.raises(StoreFullError, match="exceeds the memory budget"):
            store.keep(make_key(2), make_kv(tokens=100), Owner())

    def test_they_expire_by_their_own_rule(self, make_kv, make_key):
        kv, clock = make_kv(), [0.0]
        store = MemoryStore(10 * kv.nbytes, ttl_s=60.0, clock=lambda: clock[0])
        store.put(make_key(1), kv)
        store.keep(make_key(2), kv, Owner(idle_s=1000.0))
        clock[0] = 61.0
        assert store.open(make_key(1), kv.token_ids) is None
        assert store.open(make_key(2), kv.token_ids) is not None
        store.put(make_key(3), kv)
        assert [store.contains(make_key(number)) for number in (1, 2, 3)] == [False, True, True]
