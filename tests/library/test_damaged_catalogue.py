"""A catalogue that is not what was written is refused; nothing wrong is ever read from it."""

from __future__ import annotations

import contextlib
import random
import shutil
import sqlite3
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragblend.errors import StoreError
from ragblend.library.chunking import Chunk
from ragblend.library.records import Records
from ragblend.store.catalogue import Catalogue
from ragblend.store.key import digest_fields
from ragblend.store.migrations import MIGRATIONS

NAMESPACES = ("default", "another")


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A closed catalogue of a few documents in two namespaces, some of them indexed by format 1."""
    path = tmp_path_factory.mktemp("sound") / "catalogue.sqlite"
    shutil.copy(Path(__file__).parent / "formats" / "1" / "catalogue.sqlite", path)
    chance = np.random.default_rng(0)
    with contextlib.closing(Catalogue(path)) as catalogue:  # brings it up to date
        for number in range(30):
            text = f"Text of document {number}. " * 10
            vector = chance.standard_normal(64).astype(np.float32)
            chunk = Chunk(text, "heading", 0, tuple(chance.integers(0, 50_000, 60).tolist()))
            records = Records(catalogue, NAMESPACES[number % 2])
            name, digest = f"/docs/{number}.md", digest_fields(text)
            records.replace(name, "title", digest, [chunk], [digest_fields("key")], [vector])
    return path


@pytest.fixture
def path(tmp_path):
    return tmp_path / "catalogue.sqlite"


def everything(path: Path) -> list[object]:
    """All rows of all tables, after a check of the whole catalogue. Raises StoreError."""
    with contextlib.closing(Catalogue(path, read_only=True)) as catalogue:
        catalogue.verify()
        tables = [name for (name,) in catalogue.rows("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return [catalogue.rows(f"SELECT * FROM {table}") for table in sorted(tables)]


def served(path: Path) -> set[object]:
    """All that questions read, without any check beforehand. Raises StoreError."""
    found: set[object] = set()
    with contextlib.closing(Catalogue(path, read_only=True)) as catalogue:
        for namespace in NAMESPACES:
            records = Records(catalogue, namespace)
            ids = records.chunk_ids()
            found |= {(namespace, *item) for item in records.chunks(ids).items()}
            for page, vectors in records.embeddings(ids):
                found |= {(id, vector.tobytes()) for id, vector in zip(page.tolist(), vectors, strict=True)}
    return found


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_a_thousand_flipped_bits(sound, path):
    """Each is found, or hits bytes that mean nothing: everything reads as before."""
    data = sound.read_bytes()
    expected, answers = everything(sound), served(sound)
    found = 0
    for bit in random.Random(0).sample(range(8 * len(data)), 1000):
        path.write_bytes(flipped(data, bit))
        try:
            assert everything(path) == expected, bit
        except StoreError:
            found += 1
        with contextlib.suppress(StoreError):
            assert served(path) <= answers, bit
    assert found > 200


def test_every_bit_of_a_row_counts(sound, path):
    """Where it hurts most: the text of a chunk, its token ids, its vector, the names of documents."""
    data = sound.read_bytes()
    with contextlib.closing(Catalogue(sound, read_only=True)) as catalogue:
        [(text, ids, vector, key, name)] = catalogue.rows(
            "SELECT text, token_ids, embedding, entry_key, path FROM chunks"
            " JOIN documents ON documents.id = document_id WHERE ordinal = 0 LIMIT 1"
        )
    chance = random.Random(0)
    for value in (text.encode(), ids, vector, key.encode(), name.encode()):
        for _ in range(8):
            path.write_bytes(flipped(data, 8 * data.index(value) + chance.randrange(8 * len(value))))
            with pytest.raises(StoreError):
                everything(path)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE chunks SET text = 'something else'",
        "UPDATE chunks SET embedding = zeroblob(length(embedding))",
        "UPDATE chunks SET token_ids = substr(token_ids, 1, 8)",
        "UPDATE documents SET path = '/etc/passwd' WHERE id = 1",
        "UPDATE documents SET namespace = 'another tenant' WHERE id = 1",
        "UPDATE settings SET value = 'other' WHERE name = 'identity'",
        "UPDATE entries SET bytes = 1",
        "DELETE FROM documents WHERE id = 1",
    ],
)
def test_rows_changed_by_somebody_else(sound, path, statement):
    shutil.copy(sound, path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.create_function("row_checksum", -1, lambda *_: "forged")  # without it the triggers refuse
        connection.execute(statement)
    with pytest.raises(StoreError, match="is damaged"):
        everything(path)


@pytest.mark.parametrize(
    "statements",
    [
        "CREATE TRIGGER extra AFTER INSERT ON settings BEGIN DELETE FROM chunks; END",
        "DROP TRIGGER chunks_inserted",
        "CREATE TABLE extra (x)",
        "DROP INDEX chunks_entry_key",
        "ALTER TABLE chunks RENAME TO real; CREATE VIEW chunks AS SELECT * FROM real",
        "ALTER TABLE documents ADD COLUMN extra TEXT",
    ],
)
@pytest.mark.parametrize("read_only", [False, True])
def test_a_hostile_schema_is_refused(sound, path, statements, read_only):
    shutil.copy(sound, path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.create_function("row_checksum", -1, lambda *_: "forged")
        connection.executescript(statements)
    with pytest.raises(StoreError, match=f"its tables are not those of format {len(MIGRATIONS)}"):
        Catalogue(path, read_only=read_only)


@settings(max_examples=60, deadline=None)
@given(start=st.floats(0, 1), change=st.binary(min_size=1, max_size=64), cut=st.booleans())
def test_any_bytes_in_a_catalogue_are_refused_or_harmless(sound, start, change, cut):
    """Only StoreError, whatever stands in the file: overwritten runs, and files that end there."""
    data = sound.read_bytes()
    begin = int(start * len(data))
    changed = data[:begin] + change + (b"" if cut else data[begin + len(change) :])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "catalogue.sqlite"
        path.write_bytes(changed)
        with contextlib.suppress(StoreError):
            assert everything(path) == everything(sound)
        with contextlib.suppress(StoreError):
            assert served(path) <= served(sound)
