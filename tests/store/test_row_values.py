"""Values of the catalogue's rows: sealed so that they can be opened in their own place and nowhere else."""

from __future__ import annotations

import contextlib

import pytest

from ragblend.errors import StoreError
from ragblend.store.catalogue import Catalogue
from ragblend.store.encryption import KEY_BYTES, Cipher
from ragblend.store.namespace_key import require_same_key, row_values
from ragblend.store.row_values import AS_THEY_ARE, NAMED, SEALED, LockedRowValues, RowValues, SealedRowValues
from ragblend.store.rows import CHECKED

CIPHER = Cipher(bytes(range(KEY_BYTES)))
# What the catalogue says openly of an encrypted namespace: numbers, names of namespaces and models, and keys and
# hashes that nobody can compute from a text without the namespace's key.
OPEN = {
    "settings": {"name", "value"},
    "entries": {"key", "namespace", "tokens", "bytes", "created_at"},
    "documents": {"id", "namespace", "indexed_at"},
    "chunks": {"id", "document_id", "ordinal", "start", "entry_key"},
    "windows": {"chunk_id"},
    "precomputed": {"id", "namespace", "entry_key", "added_at"},
    "contexts": {"entry_key", "namespace"},
    "costs": {"key", "namespace", "seconds"},
    "evictions": {"key", "namespace", "evicted_at"},
    "outbox": {"key", "namespace", "operation"},
    "prefix_runs": {
        "key",
        "namespace",
        "start",
        "parent",
        "hashes",
        "built_on",
        "turns",
        "used_at",
        "ttl_s",
        "reads",
        "read_tokens",
    },
    "prefix_names": {"id", "namespace", "model", "ttl_s", "created_at", "used_at"},
    "prefix_hours": set(CHECKED["prefix_hours"]),
}


@pytest.fixture
def values(tmp_path) -> SealedRowValues:
    return SealedRowValues(CIPHER, "tenant", tmp_path / "catalogue.db")


def test_every_column_is_open_sealed_or_named():
    for table, columns in CHECKED.items():
        kinds = [OPEN[table], {*SEALED.get(table, ())}, {*NAMED.get(table, ())}]
        assert set(columns) == set.union(*kinds)
        assert len(columns) == sum(map(len, kinds))


@pytest.mark.parametrize("value", ["", "A text with ümlauts.", b"", b"\x00\xff" * 100, None])
def test_what_is_sealed_can_be_opened(values, value):
    stored = values.seal("chunks.text", 7, value)
    assert values.open("chunks.text", 7, stored) == value
    if value is not None:
        assert len(stored) == len(value.encode() if isinstance(value, str) else value) + values.overhead
        assert stored != values.seal("chunks.text", 7, value)


def test_a_value_belongs_to_its_place(values, tmp_path):
    stored = values.seal("chunks.text", 7, "secret")
    others = SealedRowValues(CIPHER, "another tenant", tmp_path / "catalogue.db")
    another_key = SealedRowValues(Cipher(bytes(KEY_BYTES)), "tenant", tmp_path / "catalogue.db")
    for reader, column, row in (
        (values, "chunks.text", 8),
        (values, "chunks.heading", 7),
        (others, "chunks.text", 7),
        (another_key, "chunks.text", 7),
    ):
        with pytest.raises(StoreError, match=rf"is damaged \(a value of {column} was changed, or belongs elsewhere"):
            reader.open(column, row, stored)


def test_every_changed_byte_is_found(values):
    stored = values.seal("chunks.text", 7, "secret")
    for position in range(len(stored)):
        changed = bytearray(stored)
        changed[position] ^= 1
        with pytest.raises(StoreError, match="was changed"):
            values.open("chunks.text", 7, bytes(changed))
    for forged in (stored[:-1], b"", "an open text", 7):
        with pytest.raises(StoreError, match="was changed"):
            values.open("chunks.text", 7, forged)


def test_names_are_found_again_and_turned_back_with_the_key_only(values, tmp_path):
    name = values.name("documents.path", "/docs/a file.md")
    assert name == values.name("documents.path", "/docs/a file.md")
    assert values.unname("documents.path", name) == "/docs/a file.md"
    others = SealedRowValues(CIPHER, "another tenant", tmp_path / "catalogue.db")
    for reader, column in ((values, "precomputed.digest"), (others, "documents.path")):
        assert reader.name(column, "/docs/a file.md") != name
        with pytest.raises(StoreError, match="was changed"):
            reader.unname(column, name)
    for forged in ("", "/docs/a file.md", name[:-4], f"A{name}", None):
        with pytest.raises(StoreError, match="was changed"):
            values.unname("documents.path", forged)


def test_without_encryption_values_are_as_they_are():
    for value in ("text", b"bytes", None):
        assert AS_THEY_ARE.seal("chunks.text", 1, value) == AS_THEY_ARE.open("chunks.text", 1, value) == value
    assert AS_THEY_ARE.name("documents.path", "/a") == AS_THEY_ARE.unname("documents.path", "/a") == "/a"


class TestKeyOfANamespace:
    def test_is_asked_for(self, catalogue):
        row_values(catalogue, "tenant", CIPHER)
        locked = row_values(catalogue, "tenant", None)
        assert isinstance(locked, LockedRowValues)
        for use in (
            locked.require_key,
            lambda: locked.seal("chunks.text", 1, "text"),
            lambda: locked.open("chunks.text", 1, b"sealed"),
            lambda: locked.name("documents.path", "/a"),
            lambda: locked.unname("documents.path", "name"),
        ):
            with pytest.raises(StoreError, match="'tenant' is encrypted: give its key"):
                use()

    @pytest.mark.parametrize("table", ["prefix_runs", "prefix_names", "documents", "precomputed", "entries"])
    def test_comes_too_late_for_what_is_there_unencrypted(self, catalogue, table):
        columns = {
            name: "'tenant'" if name == "namespace" else "0"
            for _, name, _, required, _, _ in catalogue.rows(f"PRAGMA table_info({table})")
            if required or name in ("key", "id")
        }
        with catalogue.transaction() as connection:
            connection.execute(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join(columns.values())})")
        with pytest.raises(StoreError, match="is not encrypted"):
            row_values(catalogue, "tenant", CIPHER)

    def test_of_two_that_are_given_at_once_the_first_counts(self, catalogue, tmp_path, monkeypatch):
        setting, other = catalogue.setting, Cipher(bytes(KEY_BYTES))

        def between(name: str) -> str | None:
            monkeypatch.undo()
            found = setting(name)
            with contextlib.closing(Catalogue(catalogue.path)) as another:
                row_values(another, "tenant", other)
            return found

        monkeypatch.setattr(catalogue, "setting", between)
        with pytest.raises(StoreError, match="another key"):
            row_values(catalogue, "tenant", CIPHER)

    def test_that_has_changed_since_is_noticed(self, catalogue):
        before = row_values(catalogue, "tenant", None)
        assert type(before) is RowValues
        require_same_key(catalogue, "tenant", before)
        after = row_values(catalogue, "tenant", CIPHER)
        require_same_key(catalogue, "tenant", after)
        with pytest.raises(StoreError, match="another key by now"):
            require_same_key(catalogue, "tenant", before)
