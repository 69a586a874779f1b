"""Verify finds every fault, repair puts it right, gc deletes what nobody needs."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from ragblend.errors import ConfigError, LibraryError, StoreError
from ragblend.kernels.layout import LayerKV
from ragblend.library.audit import deviating_entries
from ragblend.library.sections import Wanted
from ragblend.store.base import ChunkKV
from ragblend.store.memory import MemoryStore


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


class TestSampleAndAudit:
    def test_a_sample_is_that_large(self, library):
        flip(blobs(library)[0], 5000)
        found = {library.verify(sample=1).damaged for _ in range(60)}
        assert found == {(), (blobs(library)[0].stem,)}
        report = library.verify(sample=2)
        assert (report.entries, report.checked) == (3, 2)
        assert library.verify(sample=10).checked == 3

    def test_an_audit_of_sound_entries(self, library, watched, open_library):
        report = open_library(engine=watched).verify(audit=2)
        assert (report.audited, report.deviating, report.ok) == (2, (), True)
        assert len(watched.prefilled) == 2

    def test_an_audit_finds_what_was_computed_wrongly(self, library, engine):
        """The bytes are sound, but they are not the KV of this text."""
        key, *_ = [path.stem for path in blobs(library)]
        token_ids = dict(library._records.entries())[key]
        (wrong,) = engine.prefill([tuple(reversed(token_ids))])
        library.store.delete(key)
        library.store.put(key, ChunkKV(token_ids, wrong.layers))
        assert library.verify().ok
        report = library.verify(audit=3)
        assert (report.audited, report.deviating, report.damaged, report.ok) == (3, (key,), (), False)
        assert library.repair().recomputed == 0
        assert library.repair(everything=True).recomputed == 3
        assert library.verify(audit=3).ok

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    def test_how_far_is_too_far(self, engine, dtype):
        """Rounding is allowed, one wrong layer is not."""
        (kv,) = engine.prefill([tuple(range(40))])

        def cast(scale: float) -> ChunkKV:
            layers = [LayerKV(layer.keys.to(dtype), (layer.values * scale).to(dtype)) for layer in kv.layers]
            return ChunkKV(kv.token_ids, tuple(layers))

        class Fixed:
            def prefill(self, chunks, contexts, cancelled):
                return iter([cast(1.0)])

        for scale, deviates in ((1.0, []), (1.0001, []), (1.2, ["k"])):
            store = MemoryStore(1 << 30)
            store.put("k", cast(scale))
            assert list(deviating_entries(store, Fixed(), {"k": Wanted(kv.token_ids)})) == deviates

    def test_it_needs_a_model(self, open_library, library):
        with pytest.raises(LibraryError, match="without a model"):
            open_library(engine=None).verify(audit=1)

    @pytest.mark.parametrize("options", [{"sample": 0}, {"audit": -1}])
    def test_bad_numbers(self, library, options):
        with pytest.raises(ConfigError):
            library.verify(**options)

    def test_an_entry_of_other_token_ids_is_damaged(self, library, engine):
        key = blobs(library)[0].stem
        (other,) = engine.prefill([(1, 2, 3)])
        library.store.delete(key)
        library.store.put(key, other)
        assert library.verify().damaged == (key,)

    def test_while_another_process_removes_documents(self, library, docs):
        """What is not needed any more is not missing."""
        check = library.store.check

        def remove_first(key: str, token_ids: tuple[int, ...]) -> object:
            if library.info().documents:
                library.remove([docs])
            return check(key, token_ids)

        library.store.check = remove_first
        report = library.verify(sample=1)
        assert (report.checked, report.missing, report.damaged) == (0, (), ())


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
        library.prefixes.clear()
        flip(blobs(library)[0], 5000)
        library.prefixes.clear()
        damaged = library.ask("warranty", k=3, ratio=1.0)
        assert damaged.usage.cached_tokens < sound.usage.cached_tokens
        assert damaged.token_ids == sound.token_ids
        library.repair()
        library.prefixes.clear()
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
        assert library.info().unneeded_bytes == nbytes
        report = library.gc()
        assert (report.entries, report.files, report.nbytes) == (1, 0, nbytes)
        assert library.info().unneeded_bytes == 0
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
