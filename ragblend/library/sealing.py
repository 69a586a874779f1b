"""Sealing the rows of a namespace that was encrypted when only its files were, up to format 7."""

from __future__ import annotations

import contextlib
import shlex
from functools import partial
from pathlib import Path
from sqlite3 import Connection

from ragblend.errors import StoreFormatError
from ragblend.library import layout
from ragblend.library.lock import writing
from ragblend.library.origin import Origin
from ragblend.library.records import Records
from ragblend.library.retrieval import Retriever
from ragblend.prefix.run_store import run_namespace
from ragblend.store.catalogue import Catalogue
from ragblend.store.disk import DiskStore
from ragblend.store.encryption import Cipher
from ragblend.store.namespace_key import row_values
from ragblend.store.row_values import NAMED, SEALED, RowValues

_DOCUMENTS = "SELECT id FROM documents WHERE namespace = ?1"
_CHUNKS = f"SELECT id FROM chunks WHERE document_id IN ({_DOCUMENTS})"
# Each table's primary key, and its rows of a namespace. What the prefix cache keeps is dropped instead.
_ROWS = {
    "documents": ("id", _DOCUMENTS),
    "chunks": ("id", _CHUNKS),
    "windows": ("chunk_id", f"SELECT chunk_id FROM windows WHERE chunk_id IN ({_CHUNKS})"),
    "precomputed": ("id", "SELECT id FROM precomputed WHERE namespace = ?1"),
}


def seal_older_rows(folder: Path, catalogue: Catalogue, namespace: str, cipher: Cipher | None) -> None:
    """Seal what an older version left open in the catalogue, and leave no trace of it in the folder.

    It may be interrupted anywhere: the next one goes on. Raises StoreFormatError, with the command that does it,
    without a key or if the catalogue is open only for reading; StoreError for another key; LibraryBusyError.
    """
    mark = f"unsealed:{namespace}"
    if catalogue.setting(mark) is None:
        return
    if cipher is None or catalogue.read_only:
        raise StoreFormatError(
            f"{folder}: of the encrypted namespace {namespace!r} only the KV is encrypted yet: "
            f"seal the rest with `ragblend gc --library {shlex.quote(str(folder))} "
            f"--namespace {shlex.quote(namespace)} --encryption-key-file FILE`"
        )
    values = row_values(catalogue, namespace, cipher)
    prefixes = DiskStore(folder, catalogue, run_namespace(namespace), cipher=cipher)
    with writing(folder / layout.WRITER_LOCK), contextlib.closing(prefixes):
        with catalogue.transaction() as connection:
            if catalogue.setting(mark) == "rows":
                for table in _ROWS:
                    _seal(connection, table, namespace, values)
                # Their hashes and keys do not depend on the encryption key, so that a guess could be checked by them.
                connection.execute("DELETE FROM prefix_runs WHERE namespace = ?", (namespace,))
                connection.execute("DELETE FROM prefix_names WHERE namespace = ?", (namespace,))
                prefixes.forget([entry.key for entry in prefixes.entries()])
                catalogue.set({mark: "traces"})
        for path in prefixes.dead_files():
            prefixes.remove_file(path)
        stamp = partial(Origin(catalogue, folder).index_stamp, namespace)
        records = Records(catalogue, namespace, values)
        Retriever(records, layout.index_file(folder, namespace), stamp, cipher).rebuild()
        catalogue.rewrite()
        catalogue.unset([mark, f"unsealed:{prefixes.namespace}"])


def _seal(connection: Connection, table: str, namespace: str, values: RowValues) -> None:
    key, rows = _ROWS[table]
    sealed, named = SEALED[table], NAMED.get(table, ())
    columns = ", ".join((*sealed, *named))
    assignments = ", ".join(f"{column} = ?" for column in (*sealed, *named))
    for (row,) in connection.execute(rows, (namespace,)).fetchall():
        plain = connection.execute(f"SELECT {columns} FROM {table} WHERE {key} = ?", (row,)).fetchone()
        stored = [
            *(values.seal(f"{table}.{column}", row, value) for column, value in zip(sealed, plain, strict=False)),
            *(
                values.name(f"{table}.{column}", value)
                for column, value in zip(named, plain[len(sealed) :], strict=True)
            ),
        ]
        connection.execute(f"UPDATE {table} SET {assignments} WHERE {key} = ?", (*stored, row))
