"""What every store promises, whatever it keeps its entries in."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from ragblend.errors import ConfigError, StoreError
from ragblend.kernels.layout import LayerKV
from ragblend.store.base import ChunkKV, KVReader, KVStore
from ragblend.store.codecs import RAW
from ragblend.testing.kv import numbered_key, random_kv, same_kv, same_layer


class StoreConformance:
    """Derive from it and give it a fixture ``store``: an empty one, with room for a megabyte, closed or not."""

    @pytest.fixture(autouse=True)
    def _closed_afterwards(self, store: KVStore) -> Iterator[None]:
        yield
        store.close()

    def test_an_empty_store_has_nothing(self, store: KVStore) -> None:
        check(not store.contains(numbered_key()), "an empty store contains a key")
        check(store.open(numbered_key(), (1, 2)) is None, "an empty store opens a key")
        check(store.nbytes() == 0, "an empty store has bytes")
        check(store.misses == {"missing": 1}, f"one miss, of a missing entry, is counted as {store.misses}")

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
    def test_what_was_put_is_read_back_bit_for_bit(self, store: KVStore, dtype: torch.dtype) -> None:
        kv = random_kv(dtype=dtype)
        written = store.put(numbered_key(), kv)
        check(store.codec != RAW or written >= kv.nbytes, "put returns fewer bytes than the KV has")
        check(store.nbytes() == written, "the store has other bytes than were written")
        check(store.contains(numbered_key()), "what was put is not contained")
        with opened(store, numbered_key(), kv) as reader:
            check((reader.tokens, reader.layer_count) == (12, 3), "tokens or layers differ")
            check(reader.layer(2).codec == store.codec.numbers, "the codec is not the store's")
            check(same_kv(reader, kv), "the KV differs")
        check(not store.misses, f"a hit is counted as {store.misses}")

    def test_layers_may_differ_in_shape(self, store: KVStore) -> None:
        layers = tuple(LayerKV(torch.randn(heads, 5, 4), torch.randn(heads, 5, 4)) for heads in (1, 4))
        kv = ChunkKV((1, 2, 3, 4, 5), layers)
        store.put(numbered_key(), kv)
        with opened(store, numbered_key(), kv) as reader:
            check(same_kv(reader, kv), "the KV differs")

    def test_an_existing_entry_is_left_as_it_is(self, store: KVStore) -> None:
        first, second = random_kv(1), ChunkKV(random_kv(1).token_ids, random_kv(2).layers)
        check(store.put(numbered_key(), first) == store.put(numbered_key(), second), "the bytes differ")
        with opened(store, numbered_key(), first) as reader:
            check(same_kv(reader, first), "an entry was overwritten")

    def test_keys_are_kept_apart(self, store: KVStore) -> None:
        first, second = random_kv(1), ChunkKV(random_kv(1).token_ids, random_kv(2).layers)
        store.put(numbered_key(1), first)
        store.put(numbered_key(2), second)
        for number, kv in ((1, first), (2, second)):
            with opened(store, numbered_key(number), kv) as reader:
                check(same_kv(reader, kv), "an entry is another's")

    def test_other_token_ids_are_a_miss_and_cost_the_entry_nothing(self, store: KVStore) -> None:
        kv = random_kv()
        store.put(numbered_key(), kv)
        check(store.open(numbered_key(), (*kv.token_ids[:-1], 7)) is None, "another last token is a hit")
        check(store.open(numbered_key(), kv.token_ids[:-1]) is None, "fewer tokens are a hit")
        check(store.misses == {"stale": 2}, f"two stale misses are counted as {store.misses}")
        with opened(store, numbered_key(), kv) as reader:
            check(same_kv(reader, kv), "the KV differs")

    def test_what_is_deleted_is_gone(self, store: KVStore) -> None:
        kv = random_kv()
        store.put(numbered_key(), kv)
        store.delete(numbered_key())
        store.delete(numbered_key())
        check(not store.contains(numbered_key()), "a deleted entry is contained")
        check(store.nbytes() == 0, "a deleted entry has bytes")
        check(store.open(numbered_key(), kv.token_ids) is None, "a deleted entry is opened")

    def test_an_open_reader_outlives_its_entry(self, store: KVStore) -> None:
        kv = random_kv()
        store.put(numbered_key(), kv)
        with opened(store, numbered_key(), kv) as reader:
            store.delete(numbered_key())
            check(same_kv(reader, kv), "the KV of a deleted entry changed under its reader")

    def test_an_entry_is_pinned_while_it_is_read(self, store: KVStore) -> None:
        kv = random_kv()
        store.put(numbered_key(), kv)
        first, second = store.open(numbered_key(), kv.token_ids), store.open(numbered_key(), kv.token_ids)
        for reader in (first, second):
            if reader is None:
                raise AssertionError("an entry is missed")
            reader.layer(0)
            reader.close()
            reader.close()
        check(store.open(numbered_key(1), kv.token_ids) is None, "a missing entry is opened")
        check(store.pins() == set(), "an entry that nobody reads is pinned")

    def test_a_discarded_entry_is_counted_and_put_anew(self, store: KVStore) -> None:
        kv = random_kv()
        store.put(numbered_key(), kv)
        store.discard(numbered_key(), "corrupt")
        check(store.misses == {"corrupt": 1}, f"a corrupt miss is counted as {store.misses}")
        check(not store.contains(numbered_key()), "a discarded entry is contained")
        store.put(numbered_key(), kv)
        with opened(store, numbered_key(), kv) as reader:
            check(same_kv(reader, kv), "the KV differs")

    def test_what_there_was_only_no_memory_for_is_kept(self, store: KVStore) -> None:
        kv = random_kv()
        store.put(numbered_key(), kv)
        store.discard(numbered_key(), "alloc")
        check(store.misses == {"alloc": 1}, f"an alloc miss is counted as {store.misses}")
        with opened(store, numbered_key(), kv) as reader:
            check(same_kv(reader, kv), "the KV differs")

    @pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
    @pytest.mark.parametrize("part", ["keys", "values"])
    def test_nan_and_inf_are_never_stored(self, store: KVStore, bad: float, part: str) -> None:
        kv = random_kv()
        getattr(kv.layers[1], part)[1, 3, 5] = bad
        with pytest.raises(ConfigError, match="NaN or Inf"):
            store.put(numbered_key(), kv)
        check(not store.contains(numbered_key()), "NaN or Inf was stored")
        check(store.nbytes() == 0, "NaN or Inf was stored")

    def test_an_entry_is_a_copy_of_its_own(self, store: KVStore) -> None:
        kv = random_kv()
        before = random_kv()
        store.put(numbered_key(), kv)
        kv.layers[0].keys.zero_()
        with opened(store, numbered_key(), kv) as reader:
            check(same_kv(reader, before), "the entry changes with what was put")

    def test_rows_cut_from_a_batch_are_stored_whole(self, store: KVStore) -> None:
        batch = torch.randn(3, 2, 20, 8, requires_grad=True)
        rows = batch[1, :, 4:10]
        kv = ChunkKV((1, 2, 3, 4, 5, 6), (LayerKV(rows, rows * 2),))
        store.put(numbered_key(), kv)
        with opened(store, numbered_key(), kv) as reader:
            check(same_kv(reader, kv), "the KV differs")

    def test_threads_share_a_store(self, store: KVStore) -> None:
        kvs = [random_kv(number) for number in range(8)]

        def work(number: int) -> bool:
            kv = kvs[number % 8]
            store.put(numbered_key(number % 8), kv)
            with opened(store, numbered_key(number % 8), kv) as reader:
                return same_kv(reader, kv)

        with ThreadPoolExecutor(8) as pool:
            check(all(pool.map(work, range(64))), "an entry differs")
        check(not store.misses, f"entries that are there are missed: {store.misses}")

    def test_threads_share_a_reader(self, store: KVStore) -> None:
        kv = random_kv(layers=8)
        store.put(numbered_key(), kv)
        with opened(store, numbered_key(), kv) as reader, ThreadPoolExecutor(8) as pool:
            found = list(pool.map(reader.layer, list(range(8)) * 4))
        for index, layer in enumerate(found):
            check(same_layer(layer, kv.layers[index % 8]), "a layer is another one")

    def test_a_closed_store_refuses(self, store: KVStore) -> None:
        store.close()
        for use in (
            lambda: store.contains(numbered_key()),
            lambda: store.open(numbered_key(), (1,)),
            lambda: store.put(numbered_key(), random_kv()),
            lambda: store.delete(numbered_key()),
            store.nbytes,
        ):
            with pytest.raises(StoreError, match="closed"):
                use()


@contextlib.contextmanager
def opened(store: KVStore, key: str, kv: ChunkKV) -> Iterator[KVReader]:
    """The entry's reader; a miss fails the test."""
    reader = store.open(key, kv.token_ids)
    if reader is None:
        raise AssertionError(f"an entry that was put is missed: {store.misses}")
    with contextlib.closing(reader):
        yield reader


def check(condition: bool, message: str) -> None:
    """As ``assert``, which pytest does not rewrite here and ``python -O`` leaves out."""
    if not condition:
        raise AssertionError(message)
