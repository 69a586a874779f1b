"""The byte budget of the memory store, and whose memory it keeps entries in."""

from __future__ import annotations

import pytest
import torch

from ragblend.errors import ConfigError, StoreFullError
from ragblend.kernels.layout import LayerKV
from ragblend.store.base import ChunkKV
from ragblend.store.device import DeviceStore
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
