"""Verify finds every fault, repair puts it right, gc deletes what nobody needs."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ragblend.errors import StoreError


@pytest.fixture
def library(library, docs):
    library.add([docs])
    return library


def blobs(library) -> list[Path]:
    return sorted(library.folder.glob("kv/**/*.safetensors"))


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position % len(data)] ^= 1
    path.write_bytes(data)


def test_a_sound_library(library):
    report = library.verify()
    assert (report.entries, report.missing, report.damaged, report.orphans) == (3, (), (), ())
    assert report.index_ok
    assert report.ok


def test_verify_changes_nothing(library):
    flip(blobs(library)[0], 1000)
    assert library.verify() == library.verify()


class TestFaults:
    def test_flipped_bytes(self, library):
        chance = random.Random(0)
        for path in blobs(library):
            whole = path.read_bytes()
            for _ in range(10):
                flip(path, chance.randrange(len(whole)))
                report = library.verify()
                assert (report.ok, report.damaged, report.missing) == (False, (path.stem,), ())
                path.write_bytes(whole)
        assert library.verify().ok

    def test_swapped_entries(self, library):
        first, second, _ = blobs(library)
        aside = first.with_suffix(".aside")
        first.rename(aside)
        second.rename(first)
        aside.rename(second)
        assert set(library.verify().damaged) == {first.stem, second.stem}

    def test_missing_files_and_missing_rows(self, library):
        first, second, _ = blobs(library)
        first.unlink()
        library.store.forget([second.stem])
        report = library.verify()
        assert report.missing == (first.stem, second.stem)
        assert report.orphans == (second.name,)

    def test_a_damaged_index(self, library):
        flip(library._retriever.path, 100)
        report = library.verify()
        assert (report.ok, report.index_ok) == (False, False)

    def test_a_damaged_catalogue_is_refused(self, open_library, library, docs):
        library.close()
        catalogue = library.folder / "catalogue.sqlite"
        data = bytearray(catalogue.read_bytes())
        for position in range(4096, len(data), 512):
            data[position : position + 64] = bytes(64)
        catalogue.write_bytes(data)
        with pytest.raises(StoreError, match="damaged"):
            open_library().verify()


class TestRepair:
    def test_computes_only_what_is_broken(self, open_library, library, watched):
        first, second, _ = blobs(library)
        expected = {path.name: path.read_bytes() for path in (first, second)}
        first.unlink()
        flip(second, 5000)
        flip(library._retriever.path, 100)
        library = open_library(engine=watched)
        report = library.repair()
        assert (report.recomputed, report.index_rebuilt) == (2, True)
        assert report.tokens == sum(map(len, watched.prefilled))
        assert len(watched.prefilled) == 2
        assert library.verify().ok
        assert {path.name: path.read_bytes() for path in (first, second)} == expected

    def test_of_a_sound_library(self, library):
        report = library.repair()
        assert (report.recomputed, report.tokens, report.index_rebuilt) == (0, 0, False)

    def test_a_damaged_entry_is_a_miss_until_then(self, library):
        sound = library.ask("warranty", k=3, ratio=1.0)
        flip(blobs(library)[0], 5000)
        damaged = library.ask("warranty", k=3, ratio=1.0)
        assert damaged.usage.cached_tokens < sound.usage.cached_tokens
        assert damaged.token_ids == sound.token_ids
        library.repair()
        assert library.ask("warranty", k=3, ratio=1.0).usage == sound.usage


class TestGarbage:
    def test_of_a_clean_library(self, library):
        report = library.gc()
        assert (report.entries, report.files, report.nbytes) == (0, 0, 0)
        assert library.verify().ok

    def test_entries_that_no_chunk_needs(self, library, engine):
        (kv,) = engine.prefill([tuple(range(50))])
        key = engine.chunk_key("default", kv.token_ids)
        nbytes = library.store.put(key, kv)
        assert library.verify().orphans == (key,)
        assert library.verify().ok
        report = library.gc()
        assert (report.entries, report.files, report.nbytes) == (1, 0, nbytes)
        assert not library.store.contains(key)
        assert library.verify().orphans == ()

    def test_temporary_and_quarantined_files(self, library):
        blob = blobs(library)[0]
        nbytes = blob.stat().st_size
        blob.with_suffix(".0123.tmp").write_bytes(b"12345")
        library._retriever.path.with_suffix(".tmp").write_bytes(b"123")
        flip(blob, 5000)
        library.ask("warranty", k=3)  # meets the damaged entry and sets it aside
        report = library.gc()
        assert (report.entries, report.files) == (0, 3)
        assert report.nbytes == 5 + 3 + nbytes
        library.repair()
        assert library.verify().ok
        assert library.verify().orphans == ()

    def test_ten_thousand_temporary_files(self, library):
        folder = blobs(library)[0].parent
        for number in range(10_000):
            (folder / f"{number}.tmp").touch()
        assert library.gc().files == 10_000
        assert library.verify().ok

    def test_leaves_other_namespaces_alone(self, open_library, library, docs):
        other = open_library(namespace="other")
        other.add([docs])
        library.gc()
        assert other.verify().ok
