"""An encrypted namespace: nothing of its documents lies open in any file, and all works as without encryption."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from ragblend.config import GenerationSettings, StoreSettings
from ragblend.errors import ConfigError, LibraryBusyError, StoreError
from ragblend.library import layout
from ragblend.library.library import Library
from ragblend.library.texts import TextDocument
from ragblend.prompt import Message, Passage
from ragblend.store.catalogue import Catalogue
from ragblend.store.row_values import NAMED, SEALED

SHORT = GenerationSettings(max_tokens=4)
WAIT_S = 60.0
SYSTEM = "You are the clerk of a garden shop and answer in verse. " * 8
SHEARS = "The shears of the gardener are sharpened in late autumn."
MOWING = "The meadow is mown when the orchids have seeded."
HEDGES = "Hedges are trimmed on the first Monday of September."
PIECE = 16


@pytest.fixture
def settings(key_file: Path, tmp_path: Path) -> StoreSettings:
    return StoreSettings(encryption_key_file=key_file, remote=f"file://{tmp_path}/remote")


@pytest.fixture
def filled(open_library: Callable[..., Library], docs: Path, settings: StoreSettings) -> Library:
    return fill(open_library(store=settings), docs)


def fill(library: Library, docs: Path) -> Library:
    """Every kind of content that a library keeps."""
    library.add([docs])
    library.texts.add([TextDocument("note-of-the-gardener", SHEARS, {"author": "Zephyrine"})])
    library.precompute([Passage(MOWING, document="calendar"), Passage(HEDGES, document="calendar")])
    caches = library.engine.caches
    caches.create([Message("system", (SYSTEM,))], name="verse-clerk", namespace=library.namespace)
    library.chat([Message("user", (f"{HEDGES}\n\nWhen does the goose sing?",))], generation=SHORT).complete()
    library.ask("How long is the warranty?", k=3, generation=SHORT)
    assert library.wait(WAIT_S)
    assert library.store.flush(WAIT_S)
    library.prefixes.flush()
    return library


def content_of(catalogue: Catalogue) -> set[bytes]:
    """Pieces of everything in an unencrypted catalogue that tells something of a document or a prompt."""
    values = [
        value
        for columns in (SEALED, NAMED)
        for table, names in columns.items()
        for row in catalogue.rows(f"SELECT {', '.join(names)} FROM {table}")
        for value in row
        if value
    ]
    whole = [value.encode() if isinstance(value, str) else value for value in values]
    keys = " ".join(key for (key,) in catalogue.rows("SELECT key FROM entries")).encode()  # which are files' names too
    pieces = {value[at : at + PIECE] for value in whole for at in range(0, len(value) - PIECE + 1, PIECE)}
    return {piece for piece in pieces if piece not in keys}


def found_in(folder: Path, pieces: set[bytes]) -> set[bytes]:
    """Those of ``pieces`` that are in a file below ``folder``."""
    files = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    assert files
    return {piece for piece in pieces if any(piece in data for data in files)}


class TestNothingLiesOpen:
    @pytest.fixture
    def pieces(self, open_library, docs, tmp_path) -> Iterator[set[bytes]]:
        """What an unencrypted library of the same documents holds, and lets everybody read."""
        plain = fill(open_library(tmp_path / "plain.rag"), docs)
        words = {b"warranty", b"ninety minutes", b"blades.txt", b"Zephyrine", b"verse-clerk", b"note-of-the"}
        pieces = content_of(plain.catalogue)
        vector = plain.search("warranty", k=1)[0].embedding
        assert vector.tobytes()[:PIECE] in pieces
        words.add(vector.astype(np.float16).tobytes())  # as the search index has it
        pieces |= words
        plain.close()
        found = found_in(plain.folder, pieces)
        assert words <= found
        assert len(found) > len(pieces) * 0.9
        return {piece for piece in pieces if piece not in bytes(tmp_path)}  # which stands in the remote tier's URL

    def test_in_any_file_at_any_time(self, filled, pieces, tmp_path):
        journal = filled.folder / f"{layout.CATALOGUE}-wal"
        assert journal.stat().st_size > 0
        assert found_in(filled.folder, pieces) == set()
        filled.close()
        assert not journal.exists()
        assert found_in(filled.folder, pieces) == set()
        assert found_in(tmp_path / "remote", pieces) == set()
        blobs = [*filled.folder.glob("kv/**/*"), *filled.folder.glob("index/*"), *(tmp_path / "remote").rglob("*")]
        files = [path for path in blobs if path.is_file()]
        assert len(files) > 10
        assert all(path.read_bytes().startswith(b"RBSEAL01") for path in files)

    def test_nor_can_a_guess_be_checked(self, filled, engine, open_library, docs, tmp_path):
        plain = fill(open_library(tmp_path / "plain.rag"), docs)

        def hashes(library: Library) -> set[object]:
            """Names, keys and hashes, which all come from content."""
            runs = [run for run in library._shelf.runs() if run.exact]
            entries = {entry.key for store in (library.store, library._shelf.store) for entry in store.entries()}
            rows = library.catalogue.rows("SELECT digest FROM documents UNION ALL SELECT digest FROM precomputed")
            return entries | {digest for (digest,) in rows} | {hash for run in runs for hash in run.hashes}

        assert len(hashes(plain)) > 10
        assert hashes(plain).isdisjoint(hashes(filled))
        guessed = {engine.chunk_key("default", ids) for _, ids in filled._records.entries()}
        assert guessed.isdisjoint(hashes(filled))

    def test_the_same_document_in_two_namespaces_has_nothing_in_common(self, open_library, docs, settings):
        first, second = (open_library(namespace=name, store=settings) for name in ("first", "second"))
        for library in (first, second):
            library.add([docs])
        statement = "SELECT path, title FROM documents WHERE namespace = ?"
        rows = [
            {value for row in first.catalogue.rows(statement, library.namespace) for value in row}
            for library in (first, second)
        ]
        assert len(rows[0]) == len(rows[1]) == 6
        assert rows[0].isdisjoint(rows[1])


class TestAllWorks:
    def test_as_without_encryption(self, open_library, docs, filled, tmp_path):
        plain = fill(open_library(tmp_path / "plain.rag"), docs)
        for question in ("warranty of the robot", "shears", "battery"):
            own, expected = filled.search(question, k=4), plain.search(question, k=4)
            assert [(hit.source, hit.metadata) for hit in own] == [(hit.source, hit.metadata) for hit in expected]
            assert all(np.array_equal(a.embedding, b.embedding) for a, b in zip(own, expected, strict=True))
        answers = [library.ask("warranty", k=3, generation=SHORT) for library in (filled, plain)]
        assert answers[0].token_ids == answers[1].token_ids
        assert answers[0].usage == answers[1].usage
        own, expected = filled.info(), plain.info()
        assert (own.documents, own.chunks, own.tokens, own.texts) == (4, 4, expected.tokens, 2)

    def test_replace_and_remove(self, filled, docs):
        (docs / "warranty.md").write_text("# Warranty\n\nThe warranty of the robot lasts nine years.\n")
        report = filled.add([docs])
        assert (report.replaced, report.unchanged, report.documents) == (1, 2, 4)
        assert "nine years" in filled.search("warranty", k=1)[0].text
        assert filled.remove([docs / "blades.txt"]) == 1
        assert filled.remove([docs]) == 2
        assert [hit.document for hit in filled.search("warranty", k=9)] == ["note-of-the-gardener"]
        assert filled.verify().ok

    def test_texts(self, filled):
        assert filled.texts.ids() == ["note-of-the-gardener"]
        (text,) = filled.texts.get(["note-of-the-gardener", "another"])
        assert (text.text, text.metadata) == (SHEARS, {"author": "Zephyrine"})
        assert filled.texts.add([TextDocument("note-of-the-gardener", SHEARS, {"author": "Zephyrine"})]) == 0
        assert filled.texts.remove(["note-of-the-gardener"]) == 1
        assert filled.precompute([HEDGES]).unchanged == 1
        assert filled.verify(audit=100).ok
        assert filled.forget([MOWING, HEDGES]) == 2
        assert filled.info().texts == 0

    def test_damage_is_found_and_repaired(self, filled, open_library, settings):
        next(filled.store.folder.rglob("*.safetensors")).write_bytes(b"damaged")
        (index,) = (filled.folder / layout.INDEX).glob("*.faiss")
        index.write_bytes(index.read_bytes()[:-1])
        report = filled.verify()
        assert (len(report.damaged), report.index_ok) == (1, False)
        repaired = filled.repair()
        assert (repaired.recomputed, repaired.index_rebuilt) == (1, True)
        assert filled.verify().ok
        filled.gc()
        assert filled.verify().orphans == ()

    def test_a_changed_row_is_found(self, filled):
        with filled.catalogue.transaction() as connection:  # with a checksum that fits
            connection.execute("UPDATE chunks SET text = heading")
        filled.catalogue.verify()
        with pytest.raises(StoreError, match=r"damaged \(a value of chunks.text was changed, or belongs elsewhere"):
            filled.search("warranty", k=1)

    def test_a_restart_finds_everything(self, filled, open_library, settings, make_engine):
        filled.close()
        library = open_library(store=settings, engine=make_engine())
        assert library.engine.caches.get("verse-clerk").messages == (Message("system", (SYSTEM,)),)
        question = [Message("user", ("Which?",))]
        assert library.chat(question, cache="verse-clerk", generation=SHORT).complete().prefix_tokens > 400
        text = library.search("warranty", k=1)[0].prompt_text
        assert library.chat([Message("user", (f"{text}\n\nHow long?",))], generation=SHORT).complete().hits == 1

    def test_only_its_own_namespace_is_encrypted(self, open_library, docs, filled):
        plain = open_library(namespace="plain")
        plain.add([docs])
        assert plain.ask("warranty", k=3, generation=SHORT).hits == 3


class TestWithoutTheKey:
    def test_nothing_can_be_read(self, filled, open_library, docs, tmp_path):
        filled.close()
        with pytest.raises(StoreError, match="give its key"):
            open_library()
        locked = open_library(engine=None)
        assert locked.info().store.encrypted
        assert (locked.info().documents, locked.info().tokens, locked.info().texts) == (4, filled_tokens(locked), 2)
        vector = np.ones(1024, np.float32)
        for use in (
            lambda: locked.search("warranty"),
            lambda: locked.search_vector(vector),
            lambda: locked.texts.get(["note-of-the-gardener"]),
            locked.texts.ids,
            locked.verify,
            lambda: locked.remove([docs]),
            lambda: locked.forget([HEDGES]),
            locked.prefixes.statistics,
            locked.prefixes.clear,
            locked.named_caches.all,
        ):
            with pytest.raises(StoreError, match="'default' is encrypted: give its key") as refused:
                use()
            assert "\n" not in str(refused.value)
        locked.gc()
        locked.catalogue.verify()
        assert locked.info().documents == 4

    def test_another_key_opens_nothing(self, filled, open_library, other_key_file):
        with pytest.raises(StoreError, match="another key"):
            open_library(store=StoreSettings(encryption_key_file=other_key_file))

    def test_it_may_not_lie_in_the_library(self, open_library, key_file, tmp_path):
        open_library().close()
        inside = tmp_path / "test.rag" / "key"
        shutil.copy(key_file, inside)
        with pytest.raises(ConfigError, match="outside the library"):
            open_library(store=StoreSettings(encryption_key_file=inside))


def filled_tokens(library: Library) -> int:
    """Tokens of all chunks, from the entries' rows."""
    [(tokens,)] = library.catalogue.rows(
        "SELECT sum(tokens) FROM entries JOIN chunks ON chunks.entry_key = entries.key"
    )
    return int(tokens)


class TestErasing:
    @pytest.mark.parametrize("locked", [False, True])
    def test_leaves_nothing(self, filled, open_library, docs, settings, locked):
        other = open_library(namespace="other")
        other.add([docs])
        if locked:
            filled.close()
        library = open_library(engine=None) if locked else filled
        assert library.erase() == 4
        info = library.info()
        assert (info.documents, info.chunks, info.texts, info.kv_bytes, info.prefix_bytes) == (0, 0, 0, 0, 0)
        namespaces = {name for (name,) in library.catalogue.rows("SELECT DISTINCT namespace FROM entries")}
        assert namespaces == {"other"}
        for table in ("prefix_runs", "prefix_names", "prefix_hours", "documents", "precomputed", "costs", "evictions"):
            assert library.catalogue.rows(f"SELECT * FROM {table} WHERE namespace = 'default'") == []
        files = [path for path in library.folder.glob("kv/**/*") if path.is_file()]
        assert {path.parents[1] for path in files} == {other.store.folder}
        assert not layout.index_file(library.folder, "default").exists()
        assert other.verify().ok
        assert other.ask("warranty", k=3, generation=SHORT).hits == 3

    def test_the_namespace_can_have_another_key_then(self, filled, open_library, docs, tmp_path):
        filled.erase()
        with pytest.raises(StoreError, match="has another key by now: open it again"):
            filled.add([docs])
        other = tmp_path / "other"
        other.write_text("00" * 32)
        other.chmod(0o600)
        again = open_library(store=StoreSettings(encryption_key_file=other))
        again.add([docs])
        assert again.verify().ok
        assert again.ask("warranty", k=3, generation=SHORT).hits == 3

    def test_of_a_namespace_without_encryption(self, open_library, docs):
        library = fill(open_library(), docs)
        assert library.erase() == 4
        assert library.add([docs]).indexed == 3
        assert library.verify().ok

    def test_waits_for_the_writer(self, filled, monkeypatch):
        from ragblend.library import lock

        monkeypatch.setattr(lock, "BUSY_TIMEOUT_S", 0.1)
        with lock.writing(filled.folder / layout.WRITER_LOCK), pytest.raises(LibraryBusyError, match="is writing"):
            filled.erase()
        assert filled.info().documents == 4


class TestTwoProcesses:
    def test_a_namespace_that_became_encrypted_is_not_written_to_openly(self, open_library, docs, settings):
        """One process opens an empty namespace without a key, another one gives it a key."""
        early = open_library()
        open_library(store=settings).add([docs])
        before = early.catalogue.rows("SELECT count(*) FROM documents")
        (docs / "late.txt").write_text("Late news of the gardener.")
        for write in (lambda: early.add([docs]), lambda: early.precompute([HEDGES]), lambda: early.remove([docs])):
            with pytest.raises(StoreError, match="open it again"):
                write()
        assert early.catalogue.rows("SELECT count(*) FROM documents") == before
