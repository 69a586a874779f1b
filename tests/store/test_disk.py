"""Files and rows of the disk store, and what it does when either is not as it should be."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import subprocess

import pytest

from ragblend.errors import ConfigError, CorruptEntryError, LibraryBusyError, StoreError, StoreFullError
from ragblend.store.catalogue import Catalogue
from ragblend.store.disk import DiskStore
from ragblend.store.files import Files
from tests.store.faults import WatchedFiles


@pytest.fixture
def kv(make_kv):
    return make_kv()


@pytest.fixture
def key(make_key):
    return make_key()


def blob_path(store: DiskStore, key: str):
    return store.folder / key[:2] / f"{key}.safetensors"


def files(store: DiskStore) -> list[str]:
    return sorted(path.name for path in store.root.rglob("*") if path.is_file() and "catalogue" not in path.name)


def test_another_process_finds_the_entry(disk, kv, key, same_kv, tmp_path):
    disk.put(key, kv)
    with contextlib.closing(Catalogue(tmp_path / "catalogue.db")) as catalogue:
        reader = DiskStore(tmp_path, catalogue).open(key, kv.token_ids)
        with contextlib.closing(reader):
            assert same_kv(reader, kv)


def test_only_the_owner_can_enter_or_read(disk, kv, key):
    disk.put(key, kv)
    disk.discard(key)
    disk.put(key, kv)
    for path in (*disk.root.glob("kv/**/*"), disk.root / "kv", *disk.root.glob("quarantine/**/*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_the_catalogue_knows_every_entry(disk, make_kv, make_key):
    kvs = {make_key(number): make_kv(number, tokens=number + 1) for number in range(4)}
    written = {key: disk.put(key, kv) for key, kv in kvs.items()}
    assert {entry.key: entry.nbytes for entry in disk.entries()} == written
    assert sorted(entry.tokens for entry in disk.entries()) == [1, 2, 3, 4]
    assert {key: blob_path(disk, key).stat().st_size for key in kvs} == written
    assert list(disk.orphans()) == []


def test_namespaces_share_nothing(disk, catalogue, kv, key):
    other = DiskStore(disk.root, catalogue, "another tenant")
    disk.put(key, kv)
    assert not other.contains(key)
    assert other.open(key, kv.token_ids) is None
    assert (other.entries(), other.nbytes(), list(other.orphans())) == ([], 0, [])
    other.delete(key)
    assert disk.contains(key)
    assert other.folder != disk.folder


@pytest.mark.parametrize("key", ["", "../../etc/passwd", "A" * 64, "0" * 63, "0" * 64 + "\n"])
def test_what_is_no_key_is_refused(disk, kv, key):
    with pytest.raises(ConfigError, match="64 hexadecimal"):
        disk.put(key, kv)
    assert disk.open(key, kv.token_ids) is None
    assert files(disk) == []


class TestTransactions:
    def rolled_back(self, catalogue, change):
        with catalogue.transaction():
            change()
            raise RuntimeError

    def test_a_file_without_a_row_is_not_served(self, disk, kv, key):
        entry = disk.write_blob(key, kv)
        assert disk.open(key, kv.token_ids) is None
        assert list(disk.orphans()) == [blob_path(disk, key)]
        disk.record([entry])
        assert list(disk.orphans()) == []
        disk.open(key, kv.token_ids).close()

    def test_all_rows_are_kept_or_none(self, disk, catalogue, make_kv, make_key):
        entries = [disk.write_blob(make_key(number), make_kv(number)) for number in range(3)]
        with pytest.raises(RuntimeError):
            self.rolled_back(catalogue, lambda: disk.record(entries))
        assert disk.entries() == []
        with catalogue.transaction():
            disk.record(entries[:1])
            disk.record(entries[1:])
        assert sorted(disk.entries(), key=str) == sorted(entries, key=str)

    def test_forgetting_can_be_taken_back(self, disk, catalogue, kv, key):
        disk.put(key, kv)
        with pytest.raises(RuntimeError):
            self.rolled_back(catalogue, lambda: disk.forget([key]))
        disk.open(key, kv.token_ids).close()
        disk.forget([key])
        disk.erase([key])
        assert files(disk) == []

    def test_a_file_about_to_be_recorded_is_too_young_to_be_an_orphan(self, disk, kv, key):
        disk.write_blob(key, kv)
        assert list(disk.orphans(minimum_age_s=60)) == []
        os.utime(blob_path(disk, key), (0, 0))
        assert list(disk.orphans(minimum_age_s=60)) == [blob_path(disk, key)]


class TestDamage:
    def test_a_damaged_file_is_a_miss_set_aside_and_written_anew(self, disk, kv, key, same_kv):
        disk.put(key, kv)
        blob_path(disk, key).write_bytes(b"damaged")
        assert disk.open(key, kv.token_ids) is None
        assert disk.misses == {"corrupt": 1}
        assert [path.read_bytes() for path in disk.quarantined()] == [b"damaged"]
        assert not disk.contains(key)
        disk.put(key, kv)
        with contextlib.closing(disk.open(key, kv.token_ids)) as reader:
            assert same_kv(reader, kv)

    def test_damage_found_in_a_layer_is_reported_by_the_reader(self, disk, kv, key):
        disk.put(key, kv)
        with blob_path(disk, key).open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\x55")
        with contextlib.closing(disk.open(key, kv.token_ids)) as reader:
            reader.layer(0)
            with pytest.raises(CorruptEntryError):
                reader.layer(2)
        disk.discard(key)
        assert disk.misses == {"corrupt": 1}
        assert disk.open(key, kv.token_ids) is None
        assert len(disk.quarantined()) == 1

    def test_swapped_files_are_stale(self, disk, make_kv, make_key):
        for number in (1, 2):
            disk.put(make_key(number), make_kv(number))
        first, second = (blob_path(disk, make_key(number)) for number in (1, 2))
        first.rename(disk.root / "held")
        second.rename(first)
        (disk.root / "held").rename(second)
        assert disk.check(make_key(1)) == "stale"
        assert disk.open(make_key(1), make_kv(1).token_ids) is None
        assert disk.open(make_key(2), make_kv(2).token_ids) is None
        assert disk.misses == {"stale": 2}
        assert len(disk.quarantined()) == 2

    def test_a_missing_file_loses_its_row(self, disk, kv, key):
        disk.put(key, kv)
        blob_path(disk, key).unlink()
        assert disk.open(key, kv.token_ids) is None
        assert not disk.contains(key)
        assert disk.misses == {"missing": 1}

    def test_a_missing_file_is_written_again(self, disk, kv, key):
        disk.put(key, kv)
        blob_path(disk, key).unlink()
        disk.put(key, kv)
        disk.open(key, kv.token_ids).close()

    def test_no_file_handles_left_is_a_miss_that_costs_the_entry_nothing(self, disk, kv, key, monkeypatch):
        disk.put(key, kv)
        monkeypatch.setattr(disk, "files", failing("open", errno.EMFILE))
        assert disk.open(key, kv.token_ids) is None
        assert disk.misses == {"alloc": 1}
        monkeypatch.undo()
        disk.open(key, kv.token_ids).close()

    def test_a_miss_does_not_fail_while_another_process_writes(self, disk, kv, key, tmp_path):
        disk.put(key, kv)
        blob_path(disk, key).write_bytes(b"damaged")
        with (
            contextlib.closing(Catalogue(tmp_path / "catalogue.db", busy_timeout_s=0.05)) as reading,
            disk.catalogue.transaction(),
        ):
            assert DiskStore(tmp_path, reading).open(key, kv.token_ids) is None
        assert disk.open(key, kv.token_ids) is None
        assert not disk.contains(key)

    def test_a_miss_does_not_fail_when_its_row_cannot_be_deleted(self, disk, kv, key):
        disk.put(key, kv)
        blob_path(disk, key).write_bytes(b"damaged")
        disk.catalogue.rows("PRAGMA query_only = ON")
        assert disk.open(key, kv.token_ids) is None
        disk.catalogue.rows("PRAGMA query_only = OFF")
        assert disk.open(key, kv.token_ids) is None
        assert disk.misses == {"corrupt": 1, "missing": 1}
        assert not disk.contains(key)

    def test_check_names_the_cause_and_changes_nothing(self, disk, make_kv, make_key):
        sound, damaged, gone = (make_key(number) for number in range(3))
        for number, key in enumerate((sound, damaged, gone)):
            disk.put(key, make_kv(number))
        with blob_path(disk, damaged).open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\x55")
        blob_path(disk, gone).unlink()
        assert [disk.check(key) for key in (sound, damaged, gone)] == [None, "corrupt", "missing"]
        assert len(disk.entries()) == 3
        assert not disk.misses

    def test_deleting_removes_the_copies_in_quarantine_too(self, disk, kv, key):
        disk.put(key, kv)
        disk.discard(key)
        disk.put(key, kv)
        disk.delete(key)
        assert files(disk) == []


def failing(operation: str, code: int) -> WatchedFiles:
    """Files of which one operation always fails with ``code``."""

    def watch(_: int, name: str) -> None:
        if name == operation:
            raise OSError(code, os.strerror(code))

    return WatchedFiles(watch)


class TestFailingDisk:
    """What the user is told; ``test_faults.py`` has every operation fail."""

    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
    def test_a_full_disk_names_the_bytes_and_leaves_nothing(self, disk, kv, key, monkeypatch, code):
        monkeypatch.setattr(disk, "files", failing("write", code))
        with pytest.raises(StoreFullError, match=r"no room for [\d,]+ bytes"):
            disk.put(key, kv)
        assert files(disk) == []
        assert not disk.contains(key)
        monkeypatch.undo()
        disk.put(key, kv)
        disk.open(key, kv.token_ids).close()

    @pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.EROFS])
    def test_another_failure_is_named(self, disk, kv, key, monkeypatch, code):
        monkeypatch.setattr(disk, "files", failing("sync", code))
        with pytest.raises(StoreError, match=os.strerror(code)):
            disk.put(key, kv)
        assert files(disk) == []

    def test_a_file_that_cannot_be_set_aside_is_still_a_miss(self, disk, kv, key, monkeypatch):
        disk.put(key, kv)
        blob_path(disk, key).write_bytes(b"damaged")
        monkeypatch.setattr(disk, "files", failing("rename", errno.EROFS))
        assert disk.open(key, kv.token_ids) is None
        assert not disk.contains(key)


class ReadsCounted(Files):
    def __init__(self) -> None:
        self.nbytes = 0

    def read(self, descriptor, buffer, offset):
        count = super().read(descriptor, buffer, offset)
        self.nbytes += count
        return count


class TestReadingAhead:
    def test_reads_the_file_from_end_to_end(self, disk, kv, key):
        entry = disk.write_blob(key, kv)
        reads = ReadsCounted()
        disk.files = reads
        disk.read_ahead(key)
        assert reads.nbytes == entry.nbytes

    @pytest.mark.parametrize("operation", ["open", "read", "allocate"])
    def test_what_fails_is_left_to_who_needs_the_entry(self, disk, kv, key, operation):
        disk.put(key, kv)
        disk.files = failing(operation, errno.EIO)
        disk.read_ahead(key)
        assert disk.check(key) == "corrupt"
        disk.files = Files()
        blob_path(disk, key).write_bytes(b"")
        disk.read_ahead(key)
        blob_path(disk, key).unlink()
        disk.read_ahead(key)
        assert disk.check(key) == "missing"
        assert not disk.misses


class TestFullDisk:
    """A real filesystem of 1 MB, where mounting one is allowed."""

    @pytest.fixture
    def small_disk(self, tmp_path):
        folder = tmp_path / "small"
        folder.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
        if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
            pytest.skip("mounting a filesystem is not allowed here")
        try:
            yield folder
        finally:
            subprocess.run(["umount", str(folder)], check=True)

    def test_it_refuses_serves_what_it_has_and_resumes(self, small_disk, make_kv, make_key, same_kv):
        kv = make_kv(tokens=1000)
        with contextlib.closing(Catalogue(small_disk / "catalogue.db")) as catalogue:
            store = DiskStore(small_disk, catalogue)

            def put_many() -> None:
                for number in range(20):
                    store.put(make_key(number), kv)

            with pytest.raises(StoreFullError):
                put_many()
            kept = store.entries()
            assert 3 <= len(kept) < 20
            assert list(store.orphans()) == []
            for entry in kept:
                with contextlib.closing(store.open(entry.key, kv.token_ids)) as reader:
                    assert same_kv(reader, kv)
            store.delete(kept[0].key)
            store.put(make_key(100), kv)
            assert store.check(make_key(100)) is None


class TestReadOnly:
    @pytest.fixture
    def read_only(self, disk, kv, key):
        disk.put(key, kv)
        with contextlib.closing(Catalogue(disk.root / "catalogue.db", read_only=True)) as catalogue:
            yield DiskStore(disk.root, catalogue)

    def test_entries_are_served(self, read_only, kv, key, same_kv):
        with contextlib.closing(read_only.open(key, kv.token_ids)) as reader:
            assert same_kv(reader, kv)

    def test_a_damaged_entry_is_a_miss_and_stays_where_it_is(self, read_only, kv, key):
        blob_path(read_only, key).write_bytes(b"damaged")
        assert read_only.open(key, kv.token_ids) is None
        assert read_only.misses == {"corrupt": 1}
        assert blob_path(read_only, key).read_bytes() == b"damaged"
        assert read_only.contains(key)

    def test_nothing_can_be_changed(self, read_only, kv, key, make_key):
        for change in (
            lambda: read_only.put(make_key(1), kv),
            lambda: read_only.delete(key),
            lambda: read_only.erase([key]),
        ):
            with pytest.raises(StoreError, match="read-only"):
                change()
        assert read_only.contains(key)


def test_a_second_writer_waits_or_is_refused(disk, kv, key, tmp_path):
    with (
        contextlib.closing(Catalogue(tmp_path / "catalogue.db", busy_timeout_s=0.05)) as second,
        disk.catalogue.transaction(),
        pytest.raises(LibraryBusyError, match="another process is writing"),
    ):
        DiskStore(tmp_path, second).put(key, kv)
    disk.put(key, kv)
