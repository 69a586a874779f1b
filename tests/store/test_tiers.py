"""Memory and a device in front of a disk, a remote tier behind it: who has what, when, what a failing one costs."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from ragblend.config import DiskLimits
from ragblend.errors import LibraryBusyError, StoreError
from ragblend.store.catalogue import Catalogue
from ragblend.store.device import DeviceStore
from ragblend.store.encryption import Cipher
from ragblend.store.memory import MemoryStore
from ragblend.store.remote import RemoteStore
from ragblend.store.tiers import TieredStore

WAIT_S = 60.0


@pytest.fixture
def kv(make_kv):
    return make_kv()


@pytest.fixture
def key(make_key):
    return make_key()


@pytest.fixture
def open_tiers(tmp_path, catalogue):
    """Opens tiers on the test's folders; ``library`` names the machine they are on."""
    with contextlib.ExitStack() as stack:

        def open_it(library: str = "", *, catalogue=catalogue, **options: object) -> TieredStore:
            root = tmp_path / library
            if library:
                root.mkdir(exist_ok=True)
                catalogue = stack.enter_context(contextlib.closing(Catalogue(root / "catalogue.db")))
            options = {"memory": MemoryStore(1_000_000), "remote": remote_of(tmp_path), **options}
            store = TieredStore(root, catalogue, **options)
            stack.callback(store.close)
            return store

        yield open_it


def remote_of(tmp_path: Path, **options: object) -> RemoteStore:
    return RemoteStore(f"file://{tmp_path}/remote", **{"pause_s": 0.05, **options})


def read(store: TieredStore, key: str, kv, same_kv) -> bool:
    reader = store.open(key, kv.token_ids)
    if reader is None:
        return False
    with contextlib.closing(reader):
        assert same_kv(reader, kv)
    return True


class TestMemory:
    def test_is_filled_by_reading(self, open_tiers, kv, key, same_kv):
        store = open_tiers()
        store.put(key, kv)
        assert not store.memory.contains(key)
        assert read(store, key, kv, same_kv)
        assert store.memory.contains(key)
        store._path(key).unlink()  # the disk is not looked at again
        assert read(store, key, kv, same_kv)
        assert not store.misses

    def test_is_not_filled_by_half_a_reading(self, open_tiers, kv, key):
        store = open_tiers()
        store.put(key, kv)
        with contextlib.closing(store.open(key, kv.token_ids)) as reader:
            reader.layer(0)
        assert not store.memory.contains(key)
        assert store.pins() == store.memory.pins() == set()

    @pytest.mark.parametrize("end", ["delete", "discard"])
    def test_keeps_nothing_that_went_while_it_was_read(self, open_tiers, kv, key, same_kv, end):
        store = open_tiers(remote=None)
        store.put(key, kv)
        with contextlib.closing(store.open(key, kv.token_ids)) as reader:
            assert same_kv(reader, kv)
            getattr(store, end)(key)
        assert store.memory.nbytes() == 0

    def test_takes_what_was_read_without_copying_it(self, open_tiers, kv, key):
        store = open_tiers()
        store.put(key, kv)
        with contextlib.closing(store.open(key, kv.token_ids)) as reader:
            read_layers = [reader.layer(index) for index in range(reader.layer_count)]
        with contextlib.closing(store.open(key, kv.token_ids)) as reader:
            for index, layer in enumerate(read_layers):
                assert reader.layer(index).keys.data_ptr() == layer.keys.data_ptr()

    @pytest.mark.parametrize("end", ["delete", "discard"])
    def test_keeps_nothing_that_is_gone(self, open_tiers, kv, key, same_kv, end):
        store = open_tiers(remote=None)
        store.put(key, kv)
        assert read(store, key, kv, same_kv)
        getattr(store, end)(key)
        assert store.memory.nbytes() == 0
        assert not read(store, key, kv, same_kv)

    def test_that_is_too_small_is_passed_by(self, open_tiers, kv, key, same_kv):
        store = open_tiers(memory=MemoryStore(100))
        store.put(key, kv)
        assert read(store, key, kv, same_kv)
        assert read(store, key, kv, same_kv)


class TestDevice:
    @pytest.fixture
    def store(self, open_tiers) -> TieredStore:
        return open_tiers(device=DeviceStore(1_000_000, "cpu"), remote=None)

    def test_holds_what_is_read_again(self, store, make_kv, make_key, same_kv):
        for number in range(2):
            store.put(make_key(number), make_kv(number))
        assert read(store, make_key(0), make_kv(0), same_kv)
        assert read(store, make_key(1), make_kv(1), same_kv)
        assert not store.device.contains(make_key(0))
        assert read(store, make_key(0), make_kv(0), same_kv)
        assert [store.device.contains(make_key(number)) for number in range(2)] == [True, False]

    def test_is_looked_at_first(self, store, kv, key, same_kv):
        store.put(key, kv)
        for _ in range(2):
            assert read(store, key, kv, same_kv)
        store.memory.delete(key)
        store._path(key).unlink()
        assert read(store, key, kv, same_kv)
        assert not store.memory.contains(key)

    def test_is_filled_from_the_disk_where_there_is_no_memory_tier(self, open_tiers, kv, key, same_kv):
        store = open_tiers(device=DeviceStore(1_000_000, "cpu"), memory=None, remote=None)
        store.put(key, kv)
        assert read(store, key, kv, same_kv)
        assert store.device.contains(key)

    def test_makes_room_within_its_budget_while_memory_keeps_all(self, open_tiers, make_kv, make_key, same_kv):
        budget = 2 * make_kv().nbytes
        store = open_tiers(device=DeviceStore(budget, "cpu"), remote=None)
        for number in range(4):
            store.put(make_key(number), make_kv(number))
            for _ in range(2):
                assert read(store, make_key(number), make_kv(number), same_kv)
        assert [store.device.contains(make_key(number)) for number in range(4)] == [False, False, True, True]
        assert store.device.nbytes() == budget
        assert all(store.memory.contains(make_key(number)) for number in range(4))

    @pytest.mark.parametrize("end", ["delete", "discard"])
    def test_keeps_nothing_that_is_gone(self, store, kv, key, same_kv, end):
        store.put(key, kv)
        for _ in range(2):
            assert read(store, key, kv, same_kv)
        getattr(store, end)(key)
        assert store.device.nbytes() == store.memory.nbytes() == 0
        assert not read(store, key, kv, same_kv)

    def test_keeps_nothing_that_went_while_it_was_read(self, store, kv, key, same_kv):
        store.put(key, kv)
        assert read(store, key, kv, same_kv)
        with contextlib.closing(store.open(key, kv.token_ids)) as reader:
            assert same_kv(reader, kv)
            store.delete(key)
        assert store.device.nbytes() == store.memory.nbytes() == 0

    def test_is_closed_with_the_store(self, store):
        store.close()
        with pytest.raises(StoreError, match="the device store is closed"):
            store.device.nbytes()


class TestWriteBehind:
    def test_brings_entries_to_the_remote_tier(self, open_tiers, make_kv, make_key):
        store = open_tiers()
        for number in range(5):
            store.put(make_key(number), make_kv(number))
        assert store.flush(WAIT_S)
        assert all(store.remote.contains(make_key(number)) for number in range(5))
        assert store.remote.nbytes() == store.nbytes()

    def test_survives_the_process(self, open_tiers, tmp_path, catalogue, kv, key):
        (tmp_path / "remote").write_text("in the way")
        store = open_tiers()
        store.put(key, kv)
        assert not store.flush(WAIT_S)
        store.close()
        (tmp_path / "remote").unlink()
        again = open_tiers()
        assert again.flush(WAIT_S)
        assert again.remote.contains(key)

    def test_goes_on_when_the_tier_is_back(self, open_tiers, tmp_path, kv, key):
        (tmp_path / "remote").write_text("in the way")
        store = open_tiers()
        store.put(key, kv)
        assert not store.flush(WAIT_S)
        (tmp_path / "remote").unlink()
        for _ in range(100):
            if store.flush(WAIT_S):
                break
            store._sync._changed.acquire()
            store._sync._changed.wait(0.1)
            store._sync._changed.release()
        assert store.remote.contains(key)

    def test_a_rolled_back_transaction_is_not_carried(self, open_tiers, catalogue, kv, key):
        store = open_tiers()
        entry = store.write_blob(key, kv)
        with contextlib.suppress(RuntimeError), catalogue.transaction():
            store.record([entry])
            raise RuntimeError
        assert store.flush(WAIT_S)
        assert not store.remote.contains(key)

    def test_is_ciphertext(self, open_tiers, tmp_path, kv, key):
        cipher = Cipher(bytes(32))
        store = open_tiers(cipher=cipher, remote=remote_of(tmp_path, cipher=cipher))
        store.put(key, kv)
        assert store.flush(WAIT_S)
        (path,) = (tmp_path / "remote").rglob("*.safetensors")
        assert path.read_bytes() == store.blob(key)
        assert b"layer." not in path.read_bytes()


class TestReadThrough:
    @pytest.fixture
    def filled(self, open_tiers, make_kv, make_key) -> None:
        """Another machine's library has put three entries."""
        other = open_tiers("another")
        for number in range(3):
            other.put(make_key(number), make_kv(number))
        assert other.flush(WAIT_S)

    def test_serves_and_keeps_what_another_machine_computed(self, open_tiers, filled, kv, key, same_kv):
        store = open_tiers()
        assert read(store, key, kv, same_kv)
        assert store.memory.contains(key)
        assert store.flush(WAIT_S)
        assert store.contains(key)
        assert store.outbox.count() == 0  # the remote tier is not told what it told
        store.memory.delete(key)
        assert read(store, key, kv, same_kv)
        assert store.misses == {"missing": 1}

    def test_brings_back_what_was_evicted(self, open_tiers, make_kv, make_key, same_kv):
        store = open_tiers(memory=None, limits=DiskLimits(budget=7_000, low_watermark=1.0))
        for number in range(6):
            store.put(make_key(number), make_kv(number))
            assert store.flush(WAIT_S)
        assert len(store.entries()) == 2
        for number in range(6):
            assert read(store, make_key(number), make_kv(number), same_kv)
            assert store.flush(WAIT_S)
        assert len(store.entries()) == 2
        assert store.nbytes() <= 7_000

    def test_obtains_an_entry_instead_of_computing_it(self, open_tiers, filled, make_kv, make_key):
        store = open_tiers()
        assert store.obtain(make_key(1), make_kv(1).token_ids)
        assert store.contains(make_key(1))
        assert not store.obtain(make_key(9), (1, 2, 3))

    def test_does_not_wait_for_a_writer(self, open_tiers, filled, kv, key, same_kv):
        @contextlib.contextmanager
        def busy():
            raise LibraryBusyError("another process is writing")
            yield

        store = open_tiers(exclusive=busy)
        assert read(store, key, kv, same_kv)
        store.flush(WAIT_S)
        assert not store.contains(key)

    def test_a_read_only_library_reads_and_writes_nothing(
        self, open_tiers, filled, tmp_path, catalogue, kv, key, same_kv
    ):
        with contextlib.closing(Catalogue(tmp_path / "catalogue.db", read_only=True)) as read_only:
            store = open_tiers(catalogue=read_only)
            assert read(store, key, kv, same_kv)
            assert not store.contains(key)
            assert store.flush(WAIT_S)

    def test_a_failing_tier_is_a_miss(self, open_tiers, tmp_path, kv, key, same_kv):
        (tmp_path / "remote").write_text("in the way")
        store = open_tiers()
        assert not read(store, key, kv, same_kv)
        assert store.remote.misses == {"remote": 1}
        store.put(key, kv)
        assert read(store, key, kv, same_kv)


class TestDeleting:
    def test_reaches_the_remote_tier(self, open_tiers, kv, key):
        store = open_tiers()
        store.put(key, kv)
        assert store.flush(WAIT_S)
        store.delete(key)
        assert store.flush(WAIT_S)
        assert store.remote.nbytes() == 0

    def test_is_true_at_once_also_while_the_tier_is_gone(self, open_tiers, tmp_path, kv, key, same_kv):
        store = open_tiers()
        store.put(key, kv)
        assert store.flush(WAIT_S)
        (tmp_path / "remote").rename(tmp_path / "aside")
        (tmp_path / "remote").write_text("in the way")
        store.delete(key)
        store.flush(WAIT_S)
        (tmp_path / "remote").unlink()
        (tmp_path / "aside").rename(tmp_path / "remote")
        if store.outbox.count():  # the remote tier has it still
            assert not read(store, key, kv, same_kv)
            assert not store.obtain(key, kv.token_ids)
        store.close()
        again = open_tiers()
        assert again.flush(WAIT_S)
        assert not again.remote.contains(key)

    def test_a_damaged_file_costs_the_remote_copy_nothing(self, open_tiers, kv, key, same_kv):
        store = open_tiers(memory=None)
        store.put(key, kv)
        assert store.flush(WAIT_S)
        store._path(key).write_bytes(b"damaged")
        assert read(store, key, kv, same_kv)
        assert store.misses == {"corrupt": 1}
        assert store.flush(WAIT_S)
        assert store.contains(key)
        assert read(store, key, kv, same_kv)
        assert store.misses == {"corrupt": 1}
