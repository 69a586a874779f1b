"""Checksums of the catalogue's rows: SQLite notices damage to its structure, not to what a row says.

Each checked table has a column ``checksum`` that triggers fill in, and a connection has the function
``row_checksum`` that they call. ``docs/store-format.md`` describes both.
"""

from __future__ import annotations

import sqlite3
import struct

import xxhash

# The columns that a checksum covers, by table. A table's primary key comes first.
CHECKED: dict[str, tuple[str, ...]] = {
    "settings": ("name", "value"),
    "entries": ("key", "namespace", "tokens", "bytes", "created_at"),
    "documents": ("id", "namespace", "path", "title", "digest", "indexed_at", "metadata"),
    "chunks": ("id", "document_id", "ordinal", "text", "heading", "start", "token_ids", "embedding", "entry_key"),
    "precomputed": ("id", "namespace", "digest", "text", "token_ids", "entry_key", "added_at"),
    "windows": ("chunk_id", "embeddings"),
    "contexts": ("entry_key", "namespace", "token_ids"),
    "costs": ("key", "namespace", "seconds"),
    "evictions": ("key", "namespace", "evicted_at"),
    "outbox": ("key", "namespace", "operation"),
    "prefix_runs": (
        "key",
        "namespace",
        "start",
        "token_ids",
        "parent",
        "hashes",
        "jump",
        "built_on",
        "turns",
        "used_at",
        "ttl_s",
        "reads",
        "read_tokens",
    ),
    "prefix_names": (
        "id",
        "name",
        "namespace",
        "model",
        "messages",
        "token_ids",
        "ttl_s",
        "created_at",
        "used_at",
    ),
    "prefix_hours": (
        "id",
        "namespace",
        "hour",
        "requests",
        "hits",
        "prompt_tokens",
        "read_tokens",
        "written_tokens",
        "written_5m_tokens",
        "written_1h_tokens",
        "completion_tokens",
    ),
}


def is_sound(table: str) -> str:
    """An SQL expression: whether a row of ``table`` is what was written."""
    return f"{table}.checksum IS {_checksum(table, table)}"


def check_rows(table: str) -> str:
    """SQL, part of a migration: check the rows of ``table`` from now on, those that are there too."""
    key, *_ = CHECKED[table]
    fill = f"UPDATE {table} SET checksum = {_checksum(table, 'NEW')} WHERE {key} = NEW.{key}"
    return f"""
    ALTER TABLE {table} ADD COLUMN checksum TEXT;
    CREATE TRIGGER {table}_inserted AFTER INSERT ON {table} BEGIN {fill}; END;
    CREATE TRIGGER {table}_updated AFTER UPDATE OF {", ".join(CHECKED[table])} ON {table} BEGIN {fill}; END;
    UPDATE {table} SET checksum = {_checksum(table, table)};
    """


def add_function(connection: sqlite3.Connection) -> None:
    """Give a connection the function that its triggers call."""
    connection.create_function("row_checksum", -1, row_checksum, deterministic=True)


def row_checksum(table: str, *values: str | bytes | int | float | None) -> str:
    """XXH3-128 (32 hex digits) over the table's name and its row's values, each with type and length."""
    hasher = xxhash.xxh3_128()
    for value in (table, *values):
        if isinstance(value, float):
            data = struct.pack("<d", value)
        else:
            data = value if isinstance(value, bytes) else str(value).encode()
        hasher.update(f"{type(value).__name__} {len(data)} ".encode())
        hasher.update(data)
    return hasher.hexdigest()


def _checksum(table: str, row: str) -> str:
    return f"row_checksum('{table}', {', '.join(f'{row}.{column}' for column in CHECKED[table])})"
