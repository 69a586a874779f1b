"""Opening, sharing and losing the catalogue."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from ragblend.errors import LibraryBusyError, StoreError, StoreFormatError
from ragblend.store.catalogue import Catalogue, is_made
from ragblend.store.migrations import MIGRATIONS
from ragblend.store.rows import CHECKED


@pytest.fixture
def path(tmp_path):
    return tmp_path / "catalogue.db"


def opened(path: Path, **options: object):
    return contextlib.closing(Catalogue(path, **options))


def set_format(path: Path, version: int) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {version}")


def write_setting(catalogue: Catalogue, value: str) -> None:
    with catalogue.transaction() as connection:
        connection.execute("INSERT OR REPLACE INTO settings (name, value) VALUES ('name', ?)", (value,))


def test_a_new_catalogue_has_the_latest_format(path):
    with opened(path) as catalogue:
        assert catalogue.rows("PRAGMA user_version") == [(len(MIGRATIONS),)]
        assert catalogue.rows("PRAGMA journal_mode") == [("wal",)]
        assert catalogue.rows("PRAGMA synchronous") == [(2,)]
        assert catalogue.setting("name") is None
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_was_committed_is_there_after_reopening(path):
    with opened(path) as catalogue:
        write_setting(catalogue, "kept")
    with opened(path) as catalogue, opened(path, read_only=True) as reading:
        assert catalogue.setting("name") == reading.setting("name") == "kept"


def test_an_older_format_is_brought_up_to_date(path, monkeypatch):
    with opened(path) as catalogue:
        write_setting(catalogue, "kept")
    monkeypatch.setattr("ragblend.store.catalogue.MIGRATIONS", (*MIGRATIONS, "CREATE TABLE later (x)"))
    with pytest.raises(StoreFormatError, match=r"bring it up to date with `ragblend gc --library /"):
        Catalogue(path, read_only=True)
    with opened(path) as catalogue:
        assert catalogue.rows("SELECT * FROM later") == []
        assert catalogue.setting("name") == "kept"


def test_a_failed_migration_changes_nothing(path, monkeypatch):
    opened_once = Catalogue(path)
    opened_once.close()
    with monkeypatch.context() as patched:
        patched.setattr("ragblend.store.catalogue.MIGRATIONS", (*MIGRATIONS, "CREATE TABLE later (x); NONSENSE"))
        with pytest.raises(StoreError, match="syntax error"):
            Catalogue(path)
    with opened(path) as catalogue:
        assert catalogue.rows("PRAGMA user_version") == [(len(MIGRATIONS),)]
        assert catalogue.rows("SELECT name FROM sqlite_master WHERE name = 'later'") == []


@pytest.mark.parametrize("read_only", [False, True])
def test_a_newer_format_is_refused(path, read_only):
    Catalogue(path).close()
    set_format(path, len(MIGRATIONS) + 1)
    with pytest.raises(StoreFormatError, match="upgrade ragblend"):
        Catalogue(path, read_only=read_only)


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("content", [b"not a database at all " * 500, b"SQLite format 3\0" + b"\xff" * 4096])
def test_a_damaged_file_is_refused(path, read_only, content):
    path.write_bytes(content)
    with pytest.raises(StoreError, match="is damaged"):
        Catalogue(path, read_only=read_only)
    assert path.read_bytes() == content


class TestEmpty:
    """An empty file is left where making a catalogue did not finish, or where one was lost."""

    @pytest.fixture(params=["no bytes", "no tables"])
    def empty(self, path, request):
        path.touch()
        if request.param == "no tables":
            with contextlib.closing(sqlite3.connect(path)) as connection:
                connection.execute("PRAGMA journal_mode = WAL")
        return path

    def test_it_becomes_a_catalogue(self, empty):
        assert not is_made(empty)
        with pytest.raises(StoreError, match="index documents into it"):
            Catalogue(empty, read_only=True)
        Catalogue(empty).close()
        assert is_made(empty)

    @pytest.mark.parametrize("read_only", [False, True])
    def test_with_chunk_kv_beside_it_it_is_damaged(self, empty, read_only):
        kept = empty.parent / "kv" / "namespace" / "entry.safetensors"
        kept.parent.mkdir(parents=True)
        kept.touch()
        with pytest.raises(StoreError, match="is damaged"):
            Catalogue(empty, read_only=read_only)

    def test_one_that_cannot_be_read_counts_as_made(self, path):
        assert not is_made(path)
        path.write_bytes(b"not a database at all " * 500)
        assert is_made(path)


def test_an_absent_or_unsuitable_path_is_named(path, tmp_path):
    with pytest.raises(StoreError, match="no such file"):
        Catalogue(path, read_only=True)
    assert not path.exists()
    with pytest.raises(StoreError, match="No such file or directory"):
        Catalogue(tmp_path / "absent" / "catalogue.db")
    with pytest.raises(StoreError, match="Is a directory"):
        Catalogue(tmp_path)


def test_a_read_only_catalogue_is_not_written(path):
    Catalogue(path).close()
    with opened(path, read_only=True) as catalogue, pytest.raises(StoreError, match="readonly"):
        write_setting(catalogue, "lost")


def test_a_closed_catalogue_says_so(path):
    catalogue = Catalogue(path)
    catalogue.close()
    with pytest.raises(StoreError, match="closed"):
        catalogue.rows("SELECT 1")


def test_every_column_of_every_table_is_checked(path):
    with opened(path) as catalogue:
        names = "SELECT name FROM sqlite_master WHERE type = 'table' AND substr(name, 1, 7) <> 'sqlite_'"
        tables = {
            table: tuple(row[1] for row in catalogue.rows(f"PRAGMA table_info({table})"))
            for (table,) in catalogue.rows(names)
        }
    assert {table: set(columns) for table, columns in tables.items()} == {
        table: {*columns, "checksum"} for table, columns in CHECKED.items()
    }


class TestTransactions:
    def test_all_is_kept_or_none(self, path):
        with opened(path) as catalogue:

            def write_and_stop() -> None:
                with catalogue.transaction():
                    write_setting(catalogue, "lost")
                    raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt):
                write_and_stop()
            assert catalogue.setting("name") is None
            write_setting(catalogue, "kept")
            assert catalogue.setting("name") == "kept"

    def test_a_failed_statement_rolls_the_block_back(self, path):
        with opened(path) as catalogue:

            def write_twice() -> None:
                with catalogue.transaction() as connection:
                    connection.execute("INSERT INTO settings (name, value) VALUES ('name', 'first')")
                    connection.execute("INSERT INTO settings (name, value) VALUES ('name', 'second')")

            with pytest.raises(StoreError, match="UNIQUE"):
                write_twice()
            assert catalogue.setting("name") is None

    def test_readers_see_the_state_before_until_it_is_committed(self, path):
        with opened(path) as catalogue, opened(path, read_only=True) as reading:
            write_setting(catalogue, "before")
            with catalogue.transaction():
                write_setting(catalogue, "after")
                assert reading.setting("name") == "before"
            assert reading.setting("name") == "after"

    def test_a_second_writer_is_refused_after_its_wait(self, path):
        with opened(path) as first, opened(path, busy_timeout_s=0.05) as second:
            with first.transaction(), pytest.raises(LibraryBusyError, match="another process is writing"):
                write_setting(second, "refused")
            write_setting(second, "written")
            assert first.setting("name") == "written"

    def test_a_second_writer_waits_for_a_short_one(self, path):
        with opened(path) as first, opened(path) as second:
            begun, seen = threading.Event(), []

            def write_slowly() -> None:
                with first.transaction():
                    write_setting(first, "first")
                    begun.set()
                    seen.append(second.setting("name"))

            thread = threading.Thread(target=write_slowly)
            thread.start()
            begun.wait()
            write_setting(second, "second")
            thread.join()
            assert seen == [None]
            assert first.setting("name") == "second"

    def test_threads_share_a_catalogue(self, path):
        with opened(path) as catalogue:
            with catalogue.transaction() as connection:
                connection.execute("INSERT INTO settings (name, value) VALUES ('count', '0')")

            def count() -> None:
                for _ in range(20):
                    with catalogue.transaction() as connection:
                        connection.execute("UPDATE settings SET value = value + 1 WHERE name = 'count'")

            threads = [threading.Thread(target=count) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert catalogue.setting("count") == "80"


def test_processes_that_create_a_catalogue_together(path):
    count_itself = (
        "import os, sys, pathlib, ragblend.store.catalogue as store\n"
        "with store.Catalogue(pathlib.Path(sys.argv[1])).transaction() as connection:\n"
        "    connection.execute('INSERT INTO settings (name, value) VALUES (?, 0)', (os.getpid(),))\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", count_itself, path]) for _ in range(4)]
    assert [process.wait() for process in processes] == [0] * 4
    with opened(path) as catalogue:
        assert catalogue.rows("SELECT COUNT(*) FROM settings") == [(4,)]


class TestReadOnlyFolder:
    """A folder that this process cannot write to (root can write anywhere, so it steps down first)."""

    @pytest.fixture
    def folder(self):
        with tempfile.TemporaryDirectory() as name:
            yield Path(name)

    @pytest.fixture
    def locked(self):
        """Take away the right to write to a folder, for the rest of the test."""
        restore = contextlib.ExitStack()

        def lock(folder: Path) -> None:
            for path in (folder, *folder.iterdir()):
                path.chmod(0o555 if path.is_dir() else 0o444)
            restore.callback(folder.chmod, 0o700)
            if os.geteuid() == 0:
                os.seteuid(65534)
                restore.callback(os.seteuid, 0)

        with restore:
            yield lock

    def test_it_is_read(self, folder, locked):
        with opened(folder / "catalogue.db") as catalogue:
            write_setting(catalogue, "kept")
        locked(folder)
        with opened(folder / "catalogue.db", read_only=True) as catalogue:
            assert catalogue.setting("name") == "kept"
        with pytest.raises(StoreError, match="cannot be opened for writing"):
            Catalogue(folder / "catalogue.db")

    def test_it_is_read_next_to_a_writer(self, folder, locked):
        with opened(folder / "catalogue.db") as writing:
            write_setting(writing, "kept")
            locked(folder)
            with opened(folder / "catalogue.db", read_only=True) as catalogue:
                assert catalogue.setting("name") == "kept"

    def test_an_unfinished_journal_is_refused_rather_than_ignored(self, folder, locked):
        with opened(folder / "catalogue.db") as catalogue:
            write_setting(catalogue, "kept")
            copies = {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.endswith("-shm")}
        for path in folder.iterdir():
            path.unlink()
        for name, content in copies.items():
            (folder / name).write_bytes(content)
        locked(folder)
        with pytest.raises(StoreError, match="last writer did not finish"):
            Catalogue(folder / "catalogue.db", read_only=True)
