"""The byte budget of the memory store."""

from __future__ import annotations

import pytest

from ragblend.errors import ConfigError, StoreFullError
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
    with pytest.raises(ConfigError, match="budget"):
        MemoryStore(0)
