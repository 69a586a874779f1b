"""Every step of a write, a deletion and a read fails once, is the last one, or is forgotten by the disk."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ragblend.errors import EntryError, StoreError, StoreFullError
from ragblend.store.catalogue import Catalogue
from ragblend.store.disk import DiskStore
from ragblend.store.files import Files
from tests.store.conftest import equal_kv, numbered_key
from tests.store.faults import PiecemealFiles, WatchedFiles, judge, kv_of, reopened, workload
from tests.store.power import ForgetfulFiles

ROOT = Path(__file__).parents[2]


class PowerLostError(BaseException):
    """Not an Exception, so that nobody takes it for an error to deal with."""


def failing_at(moment: int, error: BaseException, *, for_good: bool = False) -> WatchedFiles:
    """Files that fail at one moment; ``for_good``: at all later ones too."""

    def watch(number: int, _: str) -> None:
        if number == moment or (for_good and number > moment):
            raise error

    return WatchedFiles(watch)


def moments(run) -> range:
    """The moments of ``run``, which is given files to work on."""
    files = WatchedFiles()
    run(files)
    assert files.moments > 0
    return range(files.moments)


def work(root: Path, files: Files, log: list[str]) -> None:
    root.mkdir()
    with reopened(root, files) as store:
        workload(store, log.append)


class TestWriting:
    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EACCES])
    def test_an_error_at_every_step(self, memory_path, code):
        """It is a StoreError or does not matter, and afterwards everything is as it was said to be."""
        kinds = []
        for moment in moments(lambda files: work(memory_path / "sound", files, [])):
            root, log = memory_path / str(moment), []
            files = failing_at(moment, OSError(code, os.strerror(code)))
            try:
                work(root, files, log)
            except StoreError as error:
                kinds.append(type(error))
            judge(root, log)
        assert len(kinds) > 50
        assert set(kinds) == {StoreFullError if code == errno.ENOSPC else StoreError}

    def test_an_error_that_stays(self, memory_path):
        for moment in moments(lambda files: work(memory_path / "sound", files, [])):
            root, log = memory_path / str(moment), []
            with contextlib.suppress(StoreError):
                work(root, failing_at(moment, OSError(errno.EROFS, "read-only"), for_good=True), log)
            judge(root, log)

    def test_short_reads_and_writes(self, memory_path):
        log: list[str] = []
        work(memory_path / "short", PiecemealFiles(), log)
        judge(memory_path / "short", log)
        with reopened(memory_path / "short", PiecemealFiles()) as store:
            assert [entry.key for entry in store.entries() if store.check(entry.key)] == []


class TestKilled:
    def test_at_every_step(self, memory_path):
        """SIGKILL before and after every operation on files and before every SQL statement."""
        command = [sys.executable, "-W", "error", "-m", "tests.store.killed_at_step"]
        with subprocess.Popen(command, stdin=-1, stdout=-1, text=True, cwd=ROOT) as parent:
            for moment in itertools.count():
                root = memory_path / str(moment)
                root.mkdir()
                parent.stdin.write(f"{root} {moment}\n")
                parent.stdin.flush()
                ended = parent.stdout.readline()
                assert ended in ("killed\n", "done\n")
                judge(root, (root / "log").read_text().splitlines())
                if ended == "done\n":
                    break
            parent.stdin.close()
        assert moment > 150


class TestLossOfPower:
    @staticmethod
    def run_until(moment: int, files: ForgetfulFiles) -> list[str]:
        log: list[str] = []

        def watch(number: int, _: str) -> None:
            if number >= moment:
                raise PowerLostError

        files.watch = watch
        with contextlib.suppress(PowerLostError):
            work(files.root, files, log)
        files.lose_power()
        return log

    @pytest.mark.parametrize("keep_names", [False, True])
    def test_at_every_step(self, memory_path, keep_names):
        for moment in moments(lambda files: work(memory_path / "sound", files, [])):
            root = memory_path / str(moment)
            log = self.run_until(moment, ForgetfulFiles(root, keep_names=keep_names))
            judge(root, log)

    @pytest.mark.parametrize("keep_names", [False, True])
    def test_a_store_that_does_not_sync_is_caught(self, memory_path, keep_names):
        """What the test above would say of a write without fsync."""

        class Careless(ForgetfulFiles):
            def sync(self, descriptor: int) -> None:
                pass

        root = memory_path / "careless"
        log = self.run_until(10**6, Careless(root, keep_names=keep_names))
        with pytest.raises(AssertionError):
            judge(root, log)


class TestReading:
    @pytest.fixture
    def root(self, memory_path):
        with contextlib.closing(Catalogue(memory_path / "catalogue.db")) as catalogue:
            DiskStore(memory_path, catalogue).put(numbered_key(), kv_of(0))
        return memory_path

    @staticmethod
    def read(store: DiskStore) -> str:
        """Read the entry as a request does: "hit", or the cause of the miss."""
        kv = kv_of(0)
        reader = store.open(numbered_key(), kv.token_ids)
        if reader is not None:
            with contextlib.closing(reader):
                try:
                    assert equal_kv(reader, kv)
                    return "hit"
                except EntryError as error:
                    store.discard(numbered_key(), error.cause)
        ((cause, count),) = store.misses.items()
        assert count == 1
        return cause

    @pytest.mark.parametrize(
        ("error", "cause"),
        [
            (OSError(errno.EIO, "input/output error"), "corrupt"),
            (OSError(errno.EACCES, "permission denied"), "corrupt"),
            (OSError(errno.EMFILE, "too many open files"), "alloc"),
            (OSError(errno.ENOMEM, "out of memory"), "alloc"),
            (MemoryError(), "alloc"),
        ],
        ids=["EIO", "EACCES", "EMFILE", "ENOMEM", "MemoryError"],
    )
    def test_an_error_at_every_step_is_a_counted_miss(self, root, error, cause):
        failing = ("allocate",) if isinstance(error, MemoryError) else ("open", "read")

        def read(files: Files) -> str:
            with reopened(root, files) as store:
                return self.read(store)

        missed = 0
        for moment in moments(read):
            operations: dict[int, str] = {}

            def watch(number: int, name: str, moment=moment, operations=operations) -> None:
                operations[number] = name
                if number == moment and name in failing:
                    raise error

            found = read(WatchedFiles(watch))
            expected = cause if operations[moment] in failing else "hit"
            assert found == expected
            missed += found != "hit"
            with reopened(root) as store:
                if cause == "alloc":  # nothing was wrong with the entry
                    assert self.read(store) == "hit"
                store.put(numbered_key(), kv_of(0))
        assert missed >= 8
