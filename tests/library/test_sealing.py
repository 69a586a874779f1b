"""Encrypted namespaces from before their rows were sealed: they are sealed once, or refused with the command for it."""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ragblend.cli import main
from ragblend.config import GenerationSettings, StoreSettings
from ragblend.errors import LibraryBusyError, StoreError, StoreFormatError
from ragblend.library import layout
from ragblend.library.library import Library
from ragblend.store.catalogue import Catalogue
from tests.library.conftest import WordEmbedder
from tests.library.test_encryption import content_of, found_in

SHORT = GenerationSettings(max_tokens=2)
TENANT = "tenant"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A library of format 7: three files, a text, a precomputed text, a named cache and a kept prompt in ``tenant``."""
    return Path(shutil.copytree(Path(__file__).parent / "formats" / "encrypted-7", tmp_path / "old.rag"))


@pytest.fixture
def pieces(old: Path) -> set[bytes]:
    """What of its documents and prompts lies open in it."""
    aside = Path(shutil.copytree(old, old.with_name("aside.rag")))
    with contextlib.closing(Catalogue(aside / layout.CATALOGUE)) as catalogue:
        found = content_of(catalogue)
    words = {b"shears", b"Hedges", b"Zephyrine", b"verse-clerk", b"battery.md"}
    assert words <= found_in(old, words)
    assert len(found_in(old, found)) > len(found) * 0.9
    return found | words


@pytest.fixture
def open_tenant(old: Path, key_file: Path, open_library: Callable[..., Library]) -> Callable[..., Library]:
    def open_it(**options: object) -> Library:
        settings = {"store": StoreSettings(encryption_key_file=key_file), "embedder": WordEmbedder(buckets=64)}
        return open_library(old, namespace=TENANT, **{**settings, **options})

    return open_it


def is_as_it_was(library: Library) -> bool:
    (hit,) = library.search("warranty", k=1)
    assert hit.text == "The warranty of the robot lasts two years."
    assert [Path(path).name for path in library._records.paths_below("/")] == ["battery.md", "copy.md", "warranty.md"]
    (text,) = library.texts.get(["note-of-the-gardener"])
    assert (text.text, text.metadata) == ("The shears are sharpened in late autumn.", {"author": "Zephyrine"})
    assert library.precompute(["Hedges are trimmed on the first Monday of September."]).unchanged == 1
    assert library.ask("warranty", k=2, generation=SHORT).hits == 2
    return library.verify().ok


def test_nothing_lies_open_afterwards(old, pieces, open_tenant):
    library = open_tenant()
    assert is_as_it_was(library)
    assert found_in(old, pieces) == set()
    library.close()
    assert found_in(old, pieces) == set()
    again = open_tenant()
    assert is_as_it_was(again)
    again.catalogue.verify()


def test_what_it_kept_of_prompts_is_gone(old, open_tenant):
    names = {path.name for path in old.glob("kv/*/*/*")}
    library = open_tenant()
    assert library.prefixes.statistics().prefixes == 0
    assert library.named_caches.all() == []
    left = {path.name for path in old.glob("kv/*/*/*")}
    assert left == {f"{entry.key}.safetensors" for entry in library.store.entries()} < names


@pytest.mark.parametrize("options", [{"read_only": True}, {"store": None, "engine": None}])
def test_without_the_key_or_for_reading_it_names_the_command(old, key_file, open_library, open_tenant, options):
    open_library(old).close()  # another namespace, which brings the tables up to date
    with pytest.raises(StoreFormatError, match="only the KV is encrypted yet") as refused:
        open_tenant(**options)
    command = re.search(r"`(.*)`", str(refused.value))[1].replace("FILE", str(key_file))
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(command)[1:])
    assert not ended.value.code
    assert open_tenant(read_only=True).search("warranty", k=1)


def test_another_key_is_refused_and_changes_nothing(old, open_tenant, pieces, other_key_file):
    with pytest.raises(StoreError, match="another key"):
        open_tenant(store=StoreSettings(encryption_key_file=other_key_file))
    assert is_as_it_was(open_tenant())


def test_other_namespaces_are_left_alone(old, docs, open_library, open_tenant):
    plain = open_library(old, embedder=WordEmbedder(buckets=64))
    plain.add([docs])
    statement = "SELECT * FROM chunks JOIN documents ON documents.id = document_id WHERE namespace = 'default'"
    before = plain.catalogue.rows(statement)
    open_tenant()
    assert plain.catalogue.rows(statement) == before
    assert plain.verify().ok


@pytest.mark.parametrize("step", ["seal", "rewrite", "unset"])
def test_interrupted_anywhere_it_goes_on(old, pieces, open_tenant, monkeypatch, step):
    class Killed(BaseException):
        pass

    def kill(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        name = "ragblend.library.sealing._seal" if step == "seal" else f"ragblend.store.catalogue.Catalogue.{step}"
        patched.setattr(name, kill)
        with pytest.raises(Killed):
            open_tenant()
    assert is_as_it_was(open_tenant())
    assert found_in(old, pieces) == set()


def test_a_reader_that_goes_on_reading_is_waited_for(old, pieces, open_tenant, monkeypatch):
    monkeypatch.setitem(Catalogue.__init__.__kwdefaults__, "busy_timeout_s", 0.1)
    with contextlib.closing(Catalogue(old / layout.CATALOGUE)) as reader:
        reader.connection.execute("BEGIN")
        reader.connection.execute("SELECT count(*) FROM chunks").fetchall()
        with pytest.raises(LibraryBusyError, match="another process is reading"):
            open_tenant()
        reader.connection.execute("COMMIT")
    assert is_as_it_was(open_tenant())
    assert found_in(old, pieces) == set()


def test_vectors_are_those_that_were_there(old, open_tenant):
    aside = Path(shutil.copytree(old, old.with_name("aside.rag")))
    with contextlib.closing(Catalogue(aside / layout.CATALOGUE)) as catalogue:
        rows = catalogue.rows("SELECT id, embedding FROM chunks ORDER BY id")
    expected = np.concatenate([np.frombuffer(data, np.float32) for _, data in rows])
    records = open_tenant()._records
    found = np.concatenate([vectors.ravel() for _, vectors in records.embeddings(records.chunk_ids())])
    assert np.array_equal(found, expected)
