"""A library in use whose budget is a tenth of its KV: asking, evicting, deleting, indexing, cancelling, damage."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ragblend.config import DiskLimits, GenerationSettings, StoreSettings
from ragblend.library.library import Library
from ragblend.models.canvas import Canvas

SHORT = GenerationSettings(max_tokens=4)
DOCUMENTS = 20
CACHED = 2  # a tenth of them


@pytest.fixture
def machines(tmp_path: Path) -> Path:
    """A folder of documents of one chunk each."""
    folder = tmp_path / "machines"
    folder.mkdir()
    for number in range(DOCUMENTS):
        write(folder, number, weight=number + 3)
    return folder


def write(folder: Path, number: int, weight: int) -> None:
    text = f"Machine {number} is painted in colour {number * 7}. Its weight is {weight} kilograms."
    (folder / f"{number}.txt").write_text(text)


def kv_bytes(library: Library) -> int:
    """What really lies on the disk."""
    return sum(path.stat().st_size for path in library.store.folder.rglob("*") if path.is_file())


@pytest.fixture
def library(open_library: Callable[..., Library], machines: Path, tmp_path: Path) -> Library:
    """Full of documents, with room for a tenth of their KV."""
    unlimited = open_library(tmp_path / "unlimited.rag")
    unlimited.add([machines])
    budget = CACHED * max(entry.nbytes for entry in unlimited.store.entries())
    library = open_library(store=StoreSettings(disk=DiskLimits(budget=budget, low_watermark=1.0)))
    library.add([machines])
    return library


class Use:
    """What is done to a library at random, each followed by what must hold afterwards."""

    def __init__(self, library: Library, folder: Path, seed: int) -> None:
        self.library = library
        self.folder = folder
        self.chance = random.Random(seed)
        self.deleted: set[int] = set()
        self.served = 0

    def step(self) -> None:
        number = self.chance.randrange(DOCUMENTS)
        self.chance.choice([self.ask, self.ask, self.remove, self.add, self.replace, self.cancel, self.damage])(number)
        assert kv_bytes(self.library) <= self.library.info().store.disk_budget
        assert self.library.store.pins() == set()

    def ask(self, number: int) -> None:
        """At ratio 1 an answer is full prefill's, whatever was served for it."""
        question = f"weight of machine {number}"
        answer = self.library.ask(question, k=4, ratio=1.0, generation=SHORT)
        assert answer.token_ids == self.library.ask(question, k=4, policy="full", generation=SHORT).token_ids
        assert not self.deleted & {int(Path(source.document).stem) for source in answer.sources}
        self.served += answer.hits

    def cancel(self, number: int) -> None:
        with self.library.stream(f"machine {number}", k=4, generation=SHORT) as stream:
            if self.chance.random() < 0.5:
                next(stream, None)

    def remove(self, number: int) -> None:
        if number not in self.deleted and len(self.deleted) < DOCUMENTS // 2:
            self.library.remove(self.folder / f"{number}.txt")
            (self.folder / f"{number}.txt").unlink()
            self.deleted.add(number)

    def replace(self, number: int) -> None:
        write(self.folder, number, weight=self.chance.randrange(1000))
        self.library.add([self.folder / f"{number}.txt"])
        self.deleted.discard(number)

    def add(self, number: int) -> None:
        self.library.add([self.folder])

    def damage(self, number: int) -> None:
        for path in list(self.library.store.folder.rglob("*.safetensors"))[:1]:
            path.write_bytes(b"damaged")


@pytest.mark.parametrize("steps", [40, pytest.param(5_000, marks=pytest.mark.long)])
def test_no_wrong_answer_nothing_over_budget_and_nothing_left_behind(library: Library, machines: Path, steps: int):
    use = Use(library, machines, seed=0)
    for _ in range(steps):
        use.step()
    assert use.served > 0
    library.repair()
    assert library.verify().ok


def held() -> tuple[int, int, int]:
    """Canvases, threads and open files of this process."""
    gc.collect()
    canvases = sum(issubclass(type(each), Canvas) for each in gc.get_objects())
    return canvases, threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))


def leave_early(library: Library, chance: random.Random) -> None:
    with library.stream(f"machine {chance.randrange(DOCUMENTS)}", k=4, generation=SHORT) as stream:
        for _ in range(chance.randrange(3)):
            next(stream, None)
        if chance.random() < 0.5:
            stream.cancel()
            list(stream)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files through /proc")
@pytest.mark.parametrize("count", [30, pytest.param(1_000, marks=pytest.mark.long)])
def test_cancelled_streams_leave_nothing(library: Library, machines: Path, count: int):
    chance = random.Random(1)
    for _ in range(10):  # what is opened or started once is kept
        leave_early(library, chance)
    before = held()
    for _ in range(count):
        leave_early(library, chance)
    after = held()
    assert all(now <= then for now, then in zip(after, before, strict=True)), (before, after)
    assert library.store.pins() == set()
