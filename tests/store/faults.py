"""A file layer that can be made to fail at every moment, a workload to run on it, and the judgement afterwards.

Every operation has two moments, one before and one after its effect. They are numbered.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ragblend.store.catalogue import Catalogue
from ragblend.store.disk import DiskStore
from ragblend.store.files import Files
from tests.store.conftest import equal_kv, numbered_key, random_kv

OPERATIONS = (
    "create",
    "open",
    "write",
    "read",
    "allocate",
    "sync",
    "close",
    "rename",
    "remove",
    "exists",
    "make_folder",
)


class WatchedFiles(Files):
    """Calls ``watch`` at every moment with its number and the operation. It may raise, or end the process."""

    def __init__(self, watch: Callable[[int, str], None] = lambda *_: None) -> None:
        self.watch = watch
        self.moments = 0

    def operation(self, name: str, arguments: tuple[Any, ...]) -> Any:
        self._pass(name)
        done = getattr(super(), name)(*arguments)
        try:
            self._pass(name)
        except BaseException:
            if name in ("create", "open"):  # who is told of a failure has no descriptor to close
                os.close(done)
            raise
        return done

    def _pass(self, name: str) -> None:
        self.moments += 1
        self.watch(self.moments - 1, name)


for operation in OPERATIONS:
    setattr(WatchedFiles, operation, lambda self, *arguments, name=operation: self.operation(name, arguments))


class PiecemealFiles(Files):
    """Reads and writes a few bytes at a time, as any disk may."""

    def write(self, descriptor: int, data: memoryview) -> int:
        return super().write(descriptor, data[:100])

    def read(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        return super().read(descriptor, buffer[:100], offset)


def kv_of(number: int):
    return random_kv(number, tokens=4, layers=2)


def workload(store: DiskStore, log: Callable[[str], None]) -> None:
    """Puts, deletes and gives up entries; says what it begins, and what is done."""

    def put(number: int) -> None:
        store.put(numbered_key(number), kv_of(number))

    def delete(number: int) -> None:
        store.delete(numbered_key(number))

    def discard(number: int) -> None:
        store.discard(numbered_key(number))

    for work, number in ((put, 0), (put, 1), (put, 0), (delete, 0), (discard, 1), (put, 1), (put, 0), (delete, 1)):
        log(f"begin {work.__name__} {number}")
        work(number)
        log(f"end {work.__name__} {number}")


def judge(root: Path, log: list[str]) -> None:
    """Open what a workload left: what it was told is done is so, and nothing wrong is served.

    An operation that was begun and never ended may have happened or not.
    """
    present: dict[int, set[bool]] = {0: {False}, 1: {False}}
    for line in log:
        moment, work, number = line.split()
        wanted = work == "put"
        known = present[int(number)]
        present[int(number)] = {wanted} if moment == "end" else known | {wanted}
    with reopened(root) as store:
        assert {store.check(entry.key) for entry in store.entries()} <= {None, "missing"}
        for number, possible in present.items():
            kv = kv_of(number)
            reader = store.open(numbered_key(number), kv.token_ids)
            assert (reader is not None) in possible
            if reader is not None:
                with contextlib.closing(reader):
                    assert equal_kv(reader, kv)
        for number in present:  # it goes on without anybody's help
            store.put(numbered_key(number), kv_of(number))
            assert store.check(numbered_key(number)) is None


@contextlib.contextmanager
def reopened(root: Path, files: Files | None = None) -> Iterator[DiskStore]:
    with contextlib.closing(Catalogue(root / "catalogue.db")) as catalogue:
        yield DiskStore(root, catalogue, files=files or Files())
