"""Documents and chunks in the catalogue: the SQL of one namespace."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from sqlite3 import Connection

import numpy as np

from ragblend.library.chunking import Chunk
from ragblend.library.embedding import Vectors
from ragblend.library.index import Ids
from ragblend.prompt import chunk_text
from ragblend.store.catalogue import Catalogue
from ragblend.store.key import token_bytes, token_ids_of

_PAGE = 1024
# Whoever needs entries: a column each for the namespace, the entry's key and its token ids.
_OWNERS = (
    "(SELECT namespace, entry_key, token_ids FROM chunks JOIN documents ON documents.id = chunks.document_id"
    " UNION ALL SELECT namespace, entry_key, token_ids FROM precomputed)"
)
_IN_NAMESPACE = "FROM chunks JOIN documents ON documents.id = chunks.document_id WHERE documents.namespace = ?"


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """A chunk's row together with its document's. metadata: JSON of a text that was given; None for a file."""

    token_ids: tuple[int, ...]
    entry_key: str
    document: str
    title: str
    ordinal: int
    heading: str
    text: str
    metadata: str | None
    embedding: bytes


@dataclass(frozen=True, slots=True)
class Totals:
    documents: int
    chunks: int
    tokens: int


class Records:
    """Every change bumps the namespace's ``version``, by which readers notice that their index is old.

    Ids of chunks are never used twice, and a chunk's row never changes: it is only added or removed.
    """

    def __init__(self, catalogue: Catalogue, namespace: str) -> None:
        self.catalogue = catalogue
        self.namespace = namespace

    def version(self) -> int:
        return self.catalogue.counter(self._version_name)

    def digest(self, path: str) -> str | None:
        """Digest under which the document was indexed, or None if it is not in the namespace."""
        found = self.catalogue.rows(
            "SELECT digest FROM documents WHERE namespace = ? AND path = ?", self.namespace, path
        )
        return str(found[0][0]) if found else None

    def is_file(self, path: str) -> bool:
        """Whether the document of this name was read from a file."""
        statement = "SELECT 1 FROM documents WHERE namespace = ? AND path = ? AND metadata IS NULL"
        return bool(self.catalogue.rows(statement, self.namespace, path))

    def replace(
        self,
        path: str,
        title: str,
        digest: str,
        chunks: Sequence[Chunk],
        keys: Sequence[str],
        embeddings: Sequence[Vectors],
        *,
        windows: Sequence[Vectors] = (),
        metadata: str | None = None,
    ) -> set[str]:
        """Put a document in place of what was under its path, in one transaction.

        embeddings: each chunk's own vector, [dimensions]. windows: those of each chunk's windows, [n, dimensions].
        Returns the keys of the chunks that it replaces.
        """
        with changing(self.catalogue, self._version_name) as connection:
            released = self._delete(connection, [path])
            row = connection.execute(
                "INSERT INTO documents (namespace, path, title, digest, indexed_at, metadata)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (self.namespace, path, title, digest, time.time(), metadata),
            )
            for i, (c, key, vector) in enumerate(zip(chunks, keys, embeddings, strict=True)):
                chunk = connection.execute(
                    "INSERT INTO chunks (document_id, ordinal, text, heading, start, token_ids, embedding, entry_key)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    (row.lastrowid, i, c.text, c.heading, c.start, token_bytes(c.token_ids), vector.tobytes(), key),
                )
                if windows and len(windows[i]):
                    connection.execute(
                        "INSERT INTO windows (chunk_id, embeddings) VALUES (?, ?)",
                        (chunk.lastrowid, windows[i].tobytes()),
                    )
            return released

    def remove(self, paths: Iterable[str]) -> set[str]:
        """Remove documents in one transaction. Returns the keys of their chunks."""
        with changing(self.catalogue, self._version_name) as connection:
            return self._delete(connection, paths)

    def unneeded(self, keys: Iterable[str]) -> list[str]:
        """Those of ``keys`` that no chunk and no text has."""
        statement = (
            "SELECT 1 FROM chunks WHERE entry_key = ?1 UNION ALL SELECT 1 FROM precomputed WHERE entry_key = ?1 LIMIT 1"
        )
        return sorted({key for key in keys if not self.catalogue.rows(statement, key)})

    def paths_below(self, root: str) -> list[str]:
        """Documents at ``root`` or in that folder, in order; files only."""
        folder = f"{root.rstrip('/')}/"
        after = f"{folder[:-1]}0"  # "0" follows "/"
        rows = self.catalogue.rows(
            "SELECT path FROM documents WHERE namespace = ? AND metadata IS NULL"
            " AND (path = ? OR path > ? AND path < ?) ORDER BY path",
            self.namespace,
            root,
            folder,
            after,
        )
        return [str(path) for (path,) in rows]

    def totals(self) -> Totals:
        [(documents,)] = self.catalogue.rows("SELECT count(*) FROM documents WHERE namespace = ?", self.namespace)
        [(chunks, id_bytes)] = self.catalogue.rows(
            f"SELECT count(*), coalesce(sum(length(token_ids)), 0) {_IN_NAMESPACE}", self.namespace
        )
        return Totals(documents, chunks, id_bytes // 4)

    def chunk_ids(self) -> Ids:
        """Ids of all chunks, ascending."""
        rows = self.catalogue.rows(f"SELECT chunks.id {_IN_NAMESPACE} ORDER BY chunks.id", self.namespace)
        return np.fromiter((row[0] for row in rows), np.int64, len(rows))

    def embeddings(self, ids: Ids) -> Iterator[tuple[Ids, Vectors]]:
        """Ids and vectors [n, dimensions] to find chunks by, page by page; ids that are gone are left out.

        A chunk without windows has its own vector. One with windows has a vector for each: the mean of the
        window's and the chunk's own, so that both count.
        """
        for first in range(0, len(ids), _PAGE):
            page = json.dumps(ids[first : first + _PAGE].tolist())
            rows = self.catalogue.sound_rows(
                ["chunks"], "id, embedding", "FROM chunks WHERE id IN (SELECT value FROM json_each(?))", page
            )
            windows = self.catalogue.sound_rows(
                ["windows"],
                "chunk_id, embeddings",
                "FROM windows WHERE chunk_id IN (SELECT value FROM json_each(?))",
                page,
            )
            if rows:
                parts = dict(windows)
                vectors = [_search_vectors(own, parts.get(id, b"")) for id, own in rows]
                owners = np.repeat(np.array([id for id, _ in rows], np.int64), [len(each) for each in vectors])
                yield owners, np.concatenate(vectors)

    def chunks(self, ids: Ids) -> dict[int, StoredChunk]:
        """The chunks by id, all of one moment; ids that are gone are left out."""
        rows = self.catalogue.sound_rows(
            ["chunks", "documents"],
            "chunks.id, token_ids, entry_key, path, title, ordinal, heading, text, metadata, embedding",
            f"{_IN_NAMESPACE} AND chunks.id IN (SELECT value FROM json_each(?))",
            self.namespace,
            json.dumps(ids.tolist()),
        )
        return {id: StoredChunk(token_ids_of(data), key, *texts) for id, data, key, *texts in rows}

    def prompt_texts(self, ids: Ids) -> Iterator[tuple[int, str]]:
        """Chunks by id as they stand in prompts; ids that are gone are left out."""
        rows = self.catalogue.rows(
            f"SELECT chunks.id, title, heading, text, metadata {_IN_NAMESPACE}"
            " AND chunks.id IN (SELECT value FROM json_each(?))",
            self.namespace,
            json.dumps(ids.tolist()),
        )
        for id, title, heading, text, metadata in rows:
            yield id, prompt_text(title, heading, text, metadata)

    def text_owners(self) -> Ids:
        """Ids of chunks, ascending: one for each entry, since chunks that share one have the same text."""
        rows = self.catalogue.rows(f"SELECT min(chunks.id) {_IN_NAMESPACE} GROUP BY entry_key", self.namespace)
        return np.sort(np.fromiter((row[0] for row in rows), np.int64, len(rows)))

    def texts(self, ids: Sequence[str]) -> dict[str, tuple[str, str, bytes]]:
        """Text, metadata (JSON) and embedding of texts that were given, by id; unknown ids are left out."""
        rows = self.catalogue.sound_rows(
            ["chunks", "documents"],
            "path, text, metadata, embedding",
            f"{_IN_NAMESPACE} AND metadata IS NOT NULL AND path IN (SELECT value FROM json_each(?))",
            self.namespace,
            json.dumps(ids),
        )
        return {id: (text, metadata, embedding) for id, text, metadata, embedding in rows}

    def text_ids(self) -> list[str]:
        """Ids of all texts that were given, in order."""
        rows = self.catalogue.rows(
            "SELECT path FROM documents WHERE namespace = ? AND metadata IS NOT NULL ORDER BY path", self.namespace
        )
        return [str(id) for (id,) in rows]

    def entry_count(self) -> int:
        """Number of distinct entries that chunks and texts need."""
        statement = f"SELECT count(DISTINCT entry_key) FROM {_OWNERS} WHERE namespace = ?"
        return int(self.catalogue.rows(statement, self.namespace)[0][0])

    def entries(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Key and token ids of every entry that chunks and texts need, each once, in order of the keys."""
        key = ""
        while rows := self.catalogue.rows(
            f"SELECT entry_key, token_ids FROM {_OWNERS} WHERE namespace = ? AND entry_key > ?"
            f" GROUP BY entry_key ORDER BY entry_key LIMIT {_PAGE}",
            self.namespace,
            key,
        ):
            yield from ((key, token_ids_of(data)) for key, data in rows)
            key = rows[-1][0]

    def _delete(self, connection: Connection, paths: Iterable[str]) -> set[str]:
        """Delete documents with their chunks and return the keys that these had."""
        keys: set[str] = set()
        for path in paths:
            rows = connection.execute(
                f"SELECT DISTINCT entry_key {_IN_NAMESPACE} AND path = ?", (self.namespace, path)
            ).fetchall()
            keys.update(key for (key,) in rows)
            connection.execute("DELETE FROM documents WHERE namespace = ? AND path = ?", (self.namespace, path))
        return keys

    @property
    def _version_name(self) -> str:
        return f"version:{self.namespace}"


def _search_vectors(own: bytes, windows: bytes) -> Vectors:
    whole = np.frombuffer(own, np.float32)[None]
    parts = np.frombuffer(windows, np.float32).reshape(-1, whole.shape[1])
    return (whole + parts) / np.float32(2) if len(parts) else whole


def prompt_text(title: str, heading: str, text: str, metadata: str | None) -> str:
    """A chunk as it stands in prompts: with its title line, but a text that was given just as it is."""
    return chunk_text(title, heading, text) if metadata is None else text.strip()


@contextmanager
def changing(catalogue: Catalogue, counter: str) -> Iterator[Connection]:
    """One transaction that also counts up the setting by which readers notice the change."""
    with catalogue.transaction() as connection:
        yield connection
        catalogue.count(counter)
