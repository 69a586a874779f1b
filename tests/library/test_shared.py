"""A namespace that others may read."""

from __future__ import annotations

from pathlib import Path

import pytest

from ragblend.config import GenerationSettings, StoreSettings
from ragblend.errors import ConfigError, LibraryError
from ragblend.library.library import Library

SHORT = GenerationSettings(max_tokens=4)


class TestShared:
    @pytest.fixture
    def handbook(self, open_library, docs) -> Library:
        library = open_library(namespace="handbook")
        library.add([docs])
        return library

    def tenant(self, open_library, tmp_path, **options: object) -> Library:
        (tmp_path / "own").mkdir(exist_ok=True)
        (tmp_path / "own" / "visit.txt").write_text("The visit of the technician is on Tuesday.\n")
        library = open_library(namespace="tenant", store=StoreSettings(shared_namespace="handbook"), **options)
        library.add([tmp_path / "own"])
        return library

    def test_is_searched_and_served(self, open_library, handbook, tmp_path):
        tenant = self.tenant(open_library, tmp_path)
        found = {Path(hit.document).name for hit in tenant.search("warranty technician battery", k=6)}
        assert found == {"visit.txt", "warranty.md", "battery.md", "blades.txt"}
        assert tenant.ask("warranty", k=4, generation=SHORT).hits == 4
        assert tenant.info().documents == 1

    def test_only_by_who_asks_for_it(self, open_library, handbook, tmp_path, docs):
        self.tenant(open_library, tmp_path).close()
        alone = open_library(namespace="tenant")
        assert {Path(hit.document).name for hit in alone.search("warranty", k=6)} == {"visit.txt"}
        stranger = open_library(namespace="stranger")
        with pytest.raises(LibraryError, match="nothing is indexed"):
            stranger.search("warranty")

    def test_one_that_is_empty_is_told_of(self, open_library, handbook, tmp_path, caplog):
        self.tenant(open_library, tmp_path)
        assert not caplog.records
        open_library(namespace="tenant", store=StoreSettings(shared_namespace="handbok"))
        assert caplog.messages == ["nothing is indexed in the shared namespace 'handbok'"]

    def test_is_never_written(self, open_library, handbook, tmp_path, docs):
        def state() -> dict[str, bytes]:
            folder = handbook.store.folder
            return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

        before, entries = state(), handbook.store.entries()
        tenant = self.tenant(open_library, tmp_path)
        damaged = next(iter(handbook.store.folder.rglob("*.safetensors")))
        whole = damaged.read_bytes()
        damaged.write_bytes(b"damaged")
        answer = tenant.ask("warranty battery blades", k=4, generation=SHORT)
        assert (answer.hits, answer.misses) == (3, 1)
        damaged.write_bytes(whole)
        tenant.add([docs])
        tenant.remove([docs])
        tenant.gc()
        assert (state(), handbook.store.entries()) == (before, entries)

    def test_the_same_text_is_found_once(self, open_library, handbook, tmp_path, docs):
        tenant = self.tenant(open_library, tmp_path)
        tenant.add([docs])
        hits = tenant.search("warranty", k=10)
        assert len(hits) == 4
        assert all(tenant.store.contains(hit.segment.key) for hit in hits)

    def test_itself_or_an_encrypted_one_is_refused(self, open_library, key_file):
        with pytest.raises(ConfigError, match="cannot share itself"):
            open_library(namespace="a", store=StoreSettings(shared_namespace="a"))
        open_library(namespace="secret", store=StoreSettings(encryption_key_file=key_file)).close()
        with pytest.raises(LibraryError, match="encrypted"):
            open_library(namespace="tenant", store=StoreSettings(shared_namespace="secret"))
