"""Eight processes that index one library, and entries read while they are written."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ragblend.store.catalogue import Catalogue
from ragblend.store.disk import DiskStore
from tests.store.conftest import equal_kv, numbered_key, random_kv

ROOT = Path(__file__).parents[2]
WRITERS = 8


def index_together(library: Path, docs: Path, documents: int) -> None:
    """``documents`` in eight folders; every fifth text stands in all of them."""
    folders = [docs / str(writer) for writer in range(WRITERS)]
    for writer, folder in enumerate(folders):
        folder.mkdir(parents=True)
        for number in range(documents // WRITERS):
            owner = "everybody" if number % 5 == 0 else f"gardener {writer}"
            (folder / f"{number:03}.txt").write_text(f"Text {number} of {owner}. The robot mows lawn {number}.")
    command = [sys.executable, "-W", "error", "-m", "tests.library.many_indexers", str(library), *map(str, folders)]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr


def check_nothing_is_lost(open_library, tmp_path: Path, documents: int) -> None:
    index_together(tmp_path / "test.rag", tmp_path / "docs", documents)
    each = documents // WRITERS
    shared = len(range(0, each, 5))
    library = open_library(tmp_path / "test.rag")
    report = library.verify()
    assert library.info().documents == each * WRITERS
    # A text stands once in the store, however many documents have it: their titles are equal, too.
    assert report.entries == shared + (each - shared) * WRITERS
    assert (report.ok, report.orphans) == (True, ())


def test_eight_writers_lose_nothing(open_library, tmp_path):
    check_nothing_is_lost(open_library, tmp_path, 48)


@pytest.mark.long
def test_eight_writers_with_a_thousand_documents(open_library, tmp_path):
    check_nothing_is_lost(open_library, tmp_path, 1000)


class TestWithoutLocks:
    """On some network filesystems locks are granted to everybody. Nothing wrong may come of it but misses."""

    def test_garbage_collection_during_indexing(self, open_library, docs, watched, monkeypatch):
        monkeypatch.setattr("ragblend.library.storage.writing", lambda path: contextlib.nullcontext())
        library, other = open_library(engine=watched), open_library()
        put = library.store.put

        def put_and_collect(key, kv):
            written = put(key, kv)
            other.gc()
            return written

        library.store.put = put_and_collect
        library.add([docs])
        report = library.verify()
        assert report.damaged == ()
        assert library.info().documents == 3
        sound = library.ask("warranty", k=3, policy="full")
        assert library.ask("warranty", k=3, ratio=1.0).token_ids == sound.token_ids
        library.repair()
        assert library.verify().ok


def race(folder: Path, hits: int) -> Counter[str]:
    """Put and delete an entry again and again until two others have read it so often, at whatever moment."""
    kv, key = random_kv(tokens=64, layers=4), numbered_key()
    Catalogue(folder / "catalogue.db").close()
    found: Counter[str] = Counter()
    done = threading.Event()

    def write() -> None:
        with contextlib.closing(Catalogue(folder / "catalogue.db")) as catalogue:
            store = DiskStore(folder, catalogue)
            while not done.is_set():
                store.put(key, kv)
                store.delete(key)

    def read() -> Counter[str]:
        results: Counter[str] = Counter()
        with contextlib.closing(Catalogue(folder / "catalogue.db")) as catalogue:
            store = DiskStore(folder, catalogue)
            while results["hit"] < hits // 2 and not results["wrong"]:
                reader = store.open(key, kv.token_ids)
                if reader is not None:
                    with contextlib.closing(reader):
                        results["hit" if equal_kv(reader, kv) else "wrong"] += 1
            return results + Counter(store.misses)

    with ThreadPoolExecutor(3) as pool:
        writing = pool.submit(write)
        try:
            for reading in [pool.submit(read), pool.submit(read)]:
                found += reading.result()
        finally:
            done.set()
        writing.result()
    return found


def test_an_entry_is_read_while_it_is_written(memory_path):
    found = race(memory_path, 200)
    assert found.keys() == {"hit", "missing"}
    assert found["hit"] == 200


@pytest.mark.long
def test_an_entry_is_read_a_thousand_times_while_it_is_written(tmp_path):
    found = race(tmp_path, 1000)
    assert found.keys() == {"hit", "missing"}
    assert found["hit"] == 1000
