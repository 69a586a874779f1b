"""Libraries that older versions left are brought up to date, or refused with the command that does it."""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import sqlite3
from pathlib import Path

import pytest

from ragblend.errors import StoreError, StoreFormatError
from ragblend.library import layout
from ragblend.library.library import Library
from ragblend.store.catalogue import Catalogue
from ragblend.store.migrations import MIGRATIONS
from tests.library.conftest import WordEmbedder

FORMATS = sorted(int(folder.name) for folder in (Path(__file__).parent / "formats").glob("[0-9]*"))


@pytest.fixture(params=FORMATS)
def old(request, tmp_path) -> Path:
    return Path(shutil.copytree(Path(__file__).parent / "formats" / str(request.param), tmp_path / "old.rag"))


def version(folder: Path) -> int:
    with contextlib.closing(sqlite3.connect(folder / layout.CATALOGUE)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def set_version(folder: Path, number: int) -> None:
    with contextlib.closing(sqlite3.connect(folder / layout.CATALOGUE)) as connection:
        connection.execute(f"PRAGMA user_version = {number}")


def test_all_that_was_in_it_is_there(old):
    assert version(old) < len(MIGRATIONS)
    embedder = WordEmbedder(buckets=64)
    with Library.open(old, embedder=embedder) as library:
        assert version(old) == len(MIGRATIONS)
        info = library.info()
        assert (info.documents, info.chunks, info.model) == (3, 3, "tiny-0")
        report = library.verify()
        assert (report.entries, report.missing, report.damaged, report.orphans) == (2, (), (), ())
        library.gc()  # which brings the search index up to date, too
        assert library.verify().ok
        (hit,) = library.search("warranty", k=1)
        assert hit.text == "The warranty of the robot lasts two years."
        with contextlib.closing(library.store.open(hit.segment.key, hit.segment.token_ids)) as reader:
            assert [reader.layer(index).keys.shape[1] for index in range(reader.layer_count)] == [55, 55]
        assert not library.store.misses
    with Library.open(old, embedder=embedder, namespace="another") as library:
        assert library.info().documents == 1


def test_its_rows_are_checked_from_then_on(old):
    Library.open(old).close()
    path = old / layout.CATALOGUE
    path.write_bytes(path.read_bytes().replace(b"lasts two years", b"lasts ten years"))
    with Library.open(old, embedder=WordEmbedder(buckets=64)) as library:
        for use in (library.verify, lambda: library.search("warranty", k=1)):
            with pytest.raises(StoreError, match="is damaged"):
                use()


def test_reading_alone_names_the_command_that_brings_it_up_to_date(old, run_command):
    with pytest.raises(StoreFormatError, match="older format") as refused:
        Library.open(old, read_only=True)
    command = re.search(r"`(.*)`", str(refused.value))[1]
    assert version(old) in FORMATS
    assert run_command(*shlex.split(command)[1:]) == 0
    assert version(old) == len(MIGRATIONS)
    with Library.open(old, read_only=True) as library:
        assert library.verify().ok


@pytest.mark.parametrize("read_only", [False, True])
def test_a_newer_one_is_refused_and_left_alone(old, read_only):
    Library.open(old).close()
    set_version(old, len(MIGRATIONS) + 1)
    before = (old / layout.CATALOGUE).read_bytes()
    with pytest.raises(StoreFormatError, match="upgrade ragblend"):
        Library.open(old, read_only=read_only)
    assert (old / layout.CATALOGUE).read_bytes() == before


def test_damage_is_not_carried_into_the_new_format(old):
    path = old / layout.CATALOGUE
    data = bytearray(path.read_bytes())
    for position in range(4096, len(data), 4096):
        data[position] ^= 0xFF  # the kind of each page
    path.write_bytes(data)
    with pytest.raises(StoreError, match="is damaged"):
        Catalogue(path)
    assert path.read_bytes() == data


@pytest.fixture
def run_command():
    from ragblend.cli import main

    def run(*arguments: str) -> int:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        return int(ended.value.code or 0)

    return run
