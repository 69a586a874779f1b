"""A disk store within its limits: never over a budget, also while it writes, and nothing lost but KV."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from ragblend.config import DiskLimits
from ragblend.errors import ConfigError, StoreError, StoreFullError
from ragblend.store.catalogue import Catalogue
from ragblend.store.disk import DiskStore
from ragblend.store.files import Files
from tests.store.measuring import MeasuringFiles


class Clock:
    def __init__(self) -> None:
        self.now = 1_900_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def entry_bytes(tmp_path, make_kv, make_key) -> int:
    with contextlib.closing(Catalogue(tmp_path / "measure.db")) as catalogue:
        nbytes = DiskStore(tmp_path / "measure", catalogue).put(make_key(), make_kv())
    shutil.rmtree(tmp_path / "measure")
    return nbytes


@pytest.fixture
def open_store(tmp_path, catalogue, clock):
    def open_it(namespace: str = "default", files: Files | None = None, **limits: object) -> DiskStore:
        given = {"low_watermark": 1.0, **limits}
        return DiskStore(tmp_path, catalogue, namespace, files or Files(), limits=DiskLimits(**given), clock=clock)

    return open_it


def put(store: DiskStore, key: str, kv, clock: Clock) -> None:
    """Put an entry and let its file be as old as the clock says."""
    clock.now += 1
    store.put(key, kv)
    os.utime(store._path(key), (clock.now, clock.now))


def use(store: DiskStore, key: str, kv, clock: Clock) -> bool:
    clock.now += 1
    reader = store.open(key, kv.token_ids)
    if reader is None:
        return False
    reader.close()
    os.utime(store._path(key), (clock.now, clock.now))
    return True


def test_the_least_recently_used_entry_makes_room(open_store, entry_bytes, make_kv, make_key, clock):
    store = open_store(budget=2 * entry_bytes)
    kvs = [make_kv(number) for number in range(3)]
    put(store, make_key(0), kvs[0], clock)
    put(store, make_key(1), kvs[1], clock)
    assert use(store, make_key(0), kvs[0], clock)
    put(store, make_key(2), kvs[2], clock)
    assert [store.contains(make_key(number)) for number in range(3)] == [True, False, True]
    assert store.evicted() == {make_key(1)}
    assert not use(store, make_key(1), kvs[1], clock)
    assert store.misses == {"missing": 1}
    put(store, make_key(1), kvs[1], clock)
    assert store.evicted() == {make_key(0)}


def test_opening_an_entry_is_a_use(open_store, entry_bytes, make_kv, make_key, clock):
    store = open_store(budget=2 * entry_bytes)
    put(store, make_key(0), make_kv(0), clock)
    os.utime(store._path(make_key(0)), (1000, 1000))
    store.open(make_key(0), make_kv(0).token_ids).close()
    assert store.last_use(make_key(0))[0] > 1_000_000


def test_costs_decide(open_store, entry_bytes, make_kv, make_key, clock):
    store = open_store(budget=2 * entry_bytes)
    put(store, make_key(0), make_kv(0, seconds=50.0), clock)
    put(store, make_key(1), make_kv(1, seconds=1.0), clock)
    put(store, make_key(2), make_kv(2, seconds=1.0), clock)
    assert [store.contains(make_key(number)) for number in range(3)] == [True, False, True]


def test_the_disk_is_never_over_its_cap_also_while_writing(open_store, tmp_path, entry_bytes, make_kv, make_key, clock):
    files = MeasuringFiles(tmp_path / "kv", tmp_path / "quarantine")
    budget = 3 * entry_bytes + 100
    store = open_store(files=files, budget=budget)
    for number in range(12):
        put(store, make_key(number), make_kv(number, tokens=6 + number % 7), clock)
        if number % 5 == 4:
            store.discard(make_key(number))  # quarantined files count as well
            (store.folder / make_key(number)[:2] / "left.by.a.killed.writer.tmp").write_bytes(bytes(2000))
            store.room.look_again()
    assert 2 * entry_bytes < files.most <= budget
    assert store.nbytes() <= budget


def test_threads_together_keep_to_the_budget(open_store, tmp_path, entry_bytes, make_kv, make_key):
    from concurrent.futures import ThreadPoolExecutor

    files = MeasuringFiles(tmp_path / "kv")
    store = open_store(files=files, budget=4 * entry_bytes)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: store.put(make_key(number), make_kv(number)), range(24)))
    assert files.most <= 4 * entry_bytes
    assert len(store.entries()) == 4
    assert list(store.orphans()) == []


def test_leftovers_go_before_entries(open_store, entry_bytes, make_kv, make_key, clock):
    store = open_store(budget=2 * entry_bytes)
    put(store, make_key(0), make_kv(0), clock)
    (store.folder / make_key(0)[:2] / "left.tmp").write_bytes(bytes(entry_bytes))
    store.room.look_again()  # as a writer does when it gets the lock
    put(store, make_key(1), make_kv(1), clock)
    assert len(store.entries()) == 2
    assert list(store.orphans()) == []
    assert store.evicted() == set()


def test_a_file_about_to_be_recorded_is_not_taken_for_a_leftover(open_store, entry_bytes, make_kv, make_key, clock):
    store = open_store(budget=2 * entry_bytes)
    waiting = store.write_blob(make_key(0), make_kv(0))
    put(store, make_key(1), make_kv(1), clock)
    put(store, make_key(2), make_kv(2), clock)
    store.record([waiting])
    assert store.check(make_key(0)) is None
    assert store.contains(make_key(2))
    assert not store.contains(make_key(1))


def test_entries_in_use_stay(open_store, entry_bytes, make_kv, make_key, same_kv, clock):
    store = open_store(budget=2 * entry_bytes)
    kvs = [make_kv(number) for number in range(3)]
    put(store, make_key(0), kvs[0], clock)
    put(store, make_key(1), kvs[1], clock)
    with contextlib.closing(store.open(make_key(0), kvs[0].token_ids)) as reader:
        put(store, make_key(2), kvs[2], clock)
        assert store.contains(make_key(0))
        with store.pinned([make_key(2)]), pytest.raises(StoreFullError, match="no room"):
            put(store, make_key(3), make_kv(3), clock)
        assert same_kv(reader, kvs[0])
    assert store.pins() == set()


def test_an_entry_over_the_budget_evicts_nothing(open_store, entry_bytes, make_kv, make_key, clock):
    store = open_store(budget=2 * entry_bytes)
    put(store, make_key(0), make_kv(0), clock)
    with pytest.raises(StoreFullError, match=r"no room for [\d,]+ bytes .* raise the disk budget"):
        put(store, make_key(1), make_kv(1, tokens=200), clock)
    assert [entry.key for entry in store.entries()] == [make_key(0)]
    assert list(store.orphans()) == []


def test_watermarks(open_store, entry_bytes, make_kv, make_key, clock):
    store = open_store(budget=10 * entry_bytes, low_watermark=0.5, high_watermark=0.8)
    for number in range(8):
        put(store, make_key(number), make_kv(number), clock)
    assert len(store.entries()) == 8
    put(store, make_key(8), make_kv(8), clock)
    assert len(store.entries()) == 5


def test_a_namespace_makes_room_among_its_own_only(open_store, entry_bytes, make_kv, make_key, clock):
    first = open_store("first", budget=3 * entry_bytes, total_budget=4 * entry_bytes)
    second = open_store("second", budget=3 * entry_bytes, total_budget=4 * entry_bytes)
    for number in range(3):
        put(first, make_key(number), make_kv(number), clock)
    for number in range(10, 14):
        put(second, make_key(number), make_kv(number), clock)
    assert len(first.entries()) == 3
    assert [entry.key for entry in second.entries()] == [make_key(13)]
    assert second.evicted().isdisjoint({make_key(number) for number in range(3)})
    second.delete(make_key(13))
    first.room.look_again()
    put(first, make_key(3), make_kv(3), clock)
    assert len(first.entries()) == 3


def test_a_full_library_refuses_a_namespace_that_has_nothing_to_evict(
    open_store, entry_bytes, make_kv, make_key, clock
):
    first = open_store("first", total_budget=2 * entry_bytes)
    for number in range(2):
        put(first, make_key(number), make_kv(number), clock)
    with pytest.raises(StoreFullError, match="no room"):
        open_store("second", total_budget=2 * entry_bytes).put(make_key(5), make_kv(5))
    assert len(first.entries()) == 2


def test_free_space_is_kept(open_store, entry_bytes, make_kv, make_key, clock, monkeypatch):
    usage = namedtuple("usage", "total used free")
    disk = {"size": 100 * entry_bytes, "used_by_others": 0}

    def disk_usage(folder: Path) -> object:
        used = disk["used_by_others"] + sum(p.stat().st_size for p in Path(folder).glob("kv/**/*") if p.is_file())
        return usage(disk["size"], used, disk["size"] - used)

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)
    store = open_store(free_space_floor=10 * entry_bytes)
    for number in range(3):
        put(store, make_key(number), make_kv(number), clock)
    disk["used_by_others"] = 88 * entry_bytes
    put(store, make_key(3), make_kv(3), clock)
    assert sorted(entry.key for entry in store.entries()) == sorted([make_key(2), make_key(3)])
    disk["used_by_others"] = 91 * entry_bytes
    with pytest.raises(StoreFullError, match="to be kept free"):
        put(store, make_key(4), make_kv(4), clock)
    assert len(store.entries()) == 2
    assert use(store, make_key(3), make_kv(3), clock)


class TestTimeToLive:
    def test_reading_refreshes_it(self, open_store, make_kv, make_key, clock):
        store = open_store(ttl_s=10)
        kvs = [make_kv(number) for number in range(2)]
        for number in range(2):
            put(store, make_key(number), kvs[number], clock)
        for _ in range(3):
            clock.now += 6
            assert use(store, make_key(0), kvs[0], clock)
        assert not use(store, make_key(1), kvs[1], clock)
        assert store.misses == {"expired": 1}

    def test_what_has_expired_goes_before_the_next_write(self, open_store, make_kv, make_key, clock):
        store = open_store(ttl_s=10)
        put(store, make_key(0), make_kv(0), clock)
        clock.now += 100
        store.room.look_again()
        put(store, make_key(1), make_kv(1), clock)
        assert [entry.key for entry in store.entries()] == [make_key(1)]
        assert store.evicted() == {make_key(0)}

    def test_a_reader_of_a_read_only_library_sees_it_too(self, open_store, tmp_path, make_kv, make_key, clock):
        put(open_store(), make_key(0), make_kv(0), clock)
        clock.now += 100
        with contextlib.closing(Catalogue(tmp_path / "catalogue.db", read_only=True)) as catalogue:
            store = DiskStore(tmp_path, catalogue, limits=DiskLimits(ttl_s=10), clock=clock)
            assert store.open(make_key(0), make_kv(0).token_ids) is None
            assert store.misses == {"expired": 1}


class TestInterrupted:
    """Eviction removes files before rows: what is left in between is a miss, and never a byte too much."""

    def test_between_files_and_rows(self, open_store, entry_bytes, make_kv, make_key, clock, monkeypatch):
        store = open_store(budget=2 * entry_bytes)
        put(store, make_key(0), make_kv(0), clock)
        put(store, make_key(1), make_kv(1), clock)
        with monkeypatch.context() as patched:
            patched.setattr(store.catalogue, "transaction", failing_transaction)
            with pytest.raises(StoreError):
                put(store, make_key(2), make_kv(2), clock)
        assert not use(store, make_key(0), make_kv(0), clock)
        store.room.look_again()
        put(store, make_key(2), make_kv(2), clock)
        assert use(store, make_key(1), make_kv(1), clock)
        assert use(store, make_key(2), make_kv(2), clock)


@contextlib.contextmanager
def failing_transaction():
    raise StoreError("the catalogue cannot be written")
    yield


@pytest.mark.parametrize(
    "bad",
    [
        {"budget": 0},
        {"budget": -1},
        {"total_budget": 0},
        {"low_watermark": 0.0},
        {"low_watermark": 0.9, "high_watermark": 0.8},
        {"high_watermark": 1.1},
        {"free_space_floor": -1},
        {"ttl_s": 0},
    ],
)
def test_bad_limits_are_refused(bad):
    with pytest.raises(ConfigError, match="must"):
        DiskLimits(**bad)
