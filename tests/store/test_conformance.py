"""What every store promises, whatever it keeps its entries in."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from ragblend.errors import ConfigError, StoreError
from ragblend.store.base import ChunkKV, KVStore, LayerKV
from ragblend.store.disk import DiskStore
from ragblend.store.memory import MemoryStore


@pytest.fixture(params=["memory", "disk"])
def store(request, tmp_path, catalogue):
    return MemoryStore(10_000_000) if request.param == "memory" else DiskStore(tmp_path, catalogue)


def test_an_empty_store_has_nothing(store: KVStore, make_key):
    assert not store.contains(make_key())
    assert store.open(make_key(), (1, 2)) is None
    assert store.nbytes() == 0
    assert store.misses == {"missing": 1}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_what_was_put_is_read_back_bit_for_bit(store: KVStore, make_kv, make_key, same_kv, dtype):
    kv = make_kv(dtype=dtype)
    written = store.put(make_key(), kv)
    assert written >= kv.nbytes
    assert store.nbytes() == written
    with contextlib.closing(store.open(make_key(), kv.token_ids)) as reader:
        assert (reader.tokens, reader.layer_count) == (12, 3)
        assert reader.layer(2).keys.dtype == dtype
        assert same_kv(reader, kv)
    assert not store.misses


def test_layers_may_differ_in_shape(store: KVStore, make_key, same_kv):
    layers = tuple(LayerKV(torch.randn(heads, 5, 4), torch.randn(heads, 5, 4)) for heads in (1, 4))
    kv = ChunkKV((1, 2, 3, 4, 5), layers)
    store.put(make_key(), kv)
    with contextlib.closing(store.open(make_key(), kv.token_ids)) as reader:
        assert same_kv(reader, kv)


def test_an_existing_entry_is_left_as_it_is(store: KVStore, make_kv, make_key, same_kv):
    first, second = make_kv(1), ChunkKV(make_kv(1).token_ids, make_kv(2).layers)
    assert store.put(make_key(), first) == store.put(make_key(), second)
    with contextlib.closing(store.open(make_key(), first.token_ids)) as reader:
        assert same_kv(reader, first)


def test_other_token_ids_are_a_miss_and_cost_the_entry_nothing(store: KVStore, make_kv, make_key):
    kv = make_kv()
    store.put(make_key(), kv)
    assert store.open(make_key(), (*kv.token_ids[:-1], 7)) is None
    assert store.open(make_key(), kv.token_ids[:-1]) is None
    assert store.misses == {"stale": 2}
    store.open(make_key(), kv.token_ids).close()


def test_what_is_deleted_is_gone(store: KVStore, make_kv, make_key):
    kv = make_kv()
    store.put(make_key(), kv)
    store.delete(make_key())
    store.delete(make_key())
    assert not store.contains(make_key())
    assert store.nbytes() == 0
    assert store.open(make_key(), kv.token_ids) is None


def test_an_open_reader_outlives_its_entry(store: KVStore, make_kv, make_key, same_kv):
    kv = make_kv()
    store.put(make_key(), kv)
    with contextlib.closing(store.open(make_key(), kv.token_ids)) as reader:
        store.delete(make_key())
        assert same_kv(reader, kv)


def test_a_discarded_entry_is_counted_and_put_anew(store: KVStore, make_kv, make_key, same_kv):
    kv = make_kv()
    store.put(make_key(), kv)
    store.discard(make_key(), "corrupt")
    assert store.misses == {"corrupt": 1}
    assert not store.contains(make_key())
    store.put(make_key(), kv)
    with contextlib.closing(store.open(make_key(), kv.token_ids)) as reader:
        assert same_kv(reader, kv)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("part", ["keys", "values"])
def test_nan_and_inf_are_never_stored(store: KVStore, make_kv, make_key, bad, part):
    kv = make_kv()
    getattr(kv.layers[1], part)[1, 3, 5] = bad
    with pytest.raises(ConfigError, match="NaN or Inf"):
        store.put(make_key(), kv)
    assert not store.contains(make_key())
    assert store.nbytes() == 0


def test_an_entry_is_a_copy_of_its_own(store: KVStore, make_kv, make_key):
    kv = make_kv()
    before = kv.layers[0].keys.clone()
    store.put(make_key(), kv)
    kv.layers[0].keys.zero_()
    with contextlib.closing(store.open(make_key(), kv.token_ids)) as reader:
        assert torch.equal(reader.layer(0).keys, before)


def test_rows_cut_from_a_batch_are_stored_whole(store: KVStore, make_key, same_kv):
    batch = torch.randn(3, 2, 20, 8, requires_grad=True)
    rows = batch[1, :, 4:10]
    kv = ChunkKV((1, 2, 3, 4, 5, 6), (LayerKV(rows, rows * 2),))
    store.put(make_key(), kv)
    with contextlib.closing(store.open(make_key(), kv.token_ids)) as reader:
        assert same_kv(reader, kv)


def test_threads_share_a_store(store: KVStore, make_kv, make_key, same_kv):
    kvs = [make_kv(number) for number in range(8)]

    def work(number: int) -> bool:
        kv = kvs[number % 8]
        store.put(make_key(number % 8), kv)
        with contextlib.closing(store.open(make_key(number % 8), kv.token_ids)) as reader:
            return same_kv(reader, kv)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(64)))
    assert not store.misses


def test_a_closed_store_refuses(store: KVStore, make_kv, make_key):
    store.close()
    for use in (
        lambda: store.contains(make_key()),
        lambda: store.open(make_key(), (1,)),
        lambda: store.put(make_key(), make_kv()),
        lambda: store.delete(make_key()),
        store.nbytes,
    ):
        with pytest.raises(StoreError, match="closed"):
            use()
