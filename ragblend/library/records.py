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
from ragblend.library.contexts import Contexts
from ragblend.library.embedding import Vectors
from ragblend.library.index import Ids
from ragblend.prompt import Segment, chunk_text
from ragblend.results import Source
from ragblend.store.catalogue import Catalogue
from ragblend.store.key import token_bytes, token_ids_of
from ragblend.store.namespace_key import require_same_key
from ragblend.store.row_values import AS_THEY_ARE, RowValues

_PAGE = 1024
# Whoever needs entries: the namespace, the entry's key, and the token ids with their column and row.
_OWNERS = (
    "(SELECT namespace, entry_key, token_ids, 'chunks.token_ids' AS place, chunks.id AS row"
    " FROM chunks JOIN documents ON documents.id = chunks.document_id"
    " UNION ALL SELECT namespace, entry_key, token_ids, 'precomputed.token_ids', id FROM precomputed)"
)
HAS_CONTEXT = "EXISTS (SELECT 1 FROM contexts WHERE contexts.entry_key = {table}.entry_key)"
_IN_NAMESPACE = "FROM chunks JOIN documents ON documents.id = chunks.document_id WHERE documents.namespace = ?"


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """A chunk's row together with its document's. metadata: JSON of a text that was given; None for a file.

    in_context: whether it may have been prefilled behind others of its document.
    """

    token_ids: tuple[int, ...]
    entry_key: str
    document: str
    title: str
    ordinal: int
    heading: str
    text: str
    metadata: str | None
    embedding: bytes
    in_context: bool

    def source(self, score: float) -> Source:
        return Source(self.document, self.ordinal, score, self.text, self.title, self.heading)

    def segment(self, source: Source) -> Segment:
        """As it stands in prompts."""
        return Segment("chunk", self.token_ids, self.entry_key, source, in_context=self.in_context)


@dataclass(frozen=True, slots=True)
class GivenText:
    """What is kept of a text that was given. metadata: JSON."""

    text: str
    metadata: str
    embedding: bytes
    entry_key: str


@dataclass(frozen=True, slots=True)
class Totals:
    documents: int
    chunks: int
    tokens: int


class Records:
    """Every change bumps the namespace's ``version``, by which readers notice that their index is old.

    Ids of chunks are never used twice, and a chunk's row never changes: it is only added or removed.
    values: how the rows' values are stored. contexts: what texts that were given were prefilled behind.
    """

    def __init__(self, catalogue: Catalogue, namespace: str, values: RowValues = AS_THEY_ARE) -> None:
        self.catalogue = catalogue
        self.namespace = namespace
        self.contexts = Contexts(catalogue, namespace, values)
        self._values = values

    def version(self) -> int:
        """Raises StoreError if the namespace was erased or given another key since it was opened."""
        require_same_key(self.catalogue, self.namespace, self._values)
        return self.catalogue.counter(self._version_name)

    def digest(self, path: str) -> str | None:
        """Digest under which the document was indexed, or None if it is not in the namespace."""
        statement = "SELECT id, digest FROM documents WHERE namespace = ? AND path = ?"
        for id, digest in self.catalogue.rows(statement, self.namespace, self._stored_path(path)):
            return str(self._values.open("documents.digest", id, digest))
        return None

    def is_file(self, path: str) -> bool:
        """Whether the document of this name was read from a file."""
        statement = "SELECT 1 FROM documents WHERE namespace = ? AND path = ? AND metadata IS NULL"
        return bool(self.catalogue.rows(statement, self.namespace, self._stored_path(path)))

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
        seal = self._values.seal
        with changing(self.catalogue, self._version_name) as connection:
            released = self._delete(connection, [path])
            document = self.catalogue.next_id("documents")
            connection.execute(
                "INSERT INTO documents (id, namespace, path, title, digest, indexed_at, metadata)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    document,
                    self.namespace,
                    self._stored_path(path),
                    seal("documents.title", document, title),
                    seal("documents.digest", document, digest),
                    time.time(),
                    seal("documents.metadata", document, metadata),
                ),
            )
            first = self.catalogue.next_id("chunks")
            for i, (c, key, vector) in enumerate(zip(chunks, keys, embeddings, strict=True)):
                id = first + i
                connection.execute(
                    "INSERT INTO chunks"
                    " (id, document_id, ordinal, text, heading, start, token_ids, embedding, entry_key)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        id,
                        document,
                        i,
                        seal("chunks.text", id, c.text),
                        seal("chunks.heading", id, c.heading),
                        c.start,
                        seal("chunks.token_ids", id, token_bytes(c.token_ids)),
                        seal("chunks.embedding", id, vector.tobytes()),
                        key,
                    ),
                )
                if windows and len(windows[i]):
                    connection.execute(
                        "INSERT INTO windows (chunk_id, embeddings) VALUES (?, ?)",
                        (id, seal("windows.embeddings", id, windows[i].tobytes())),
                    )
            return released

    def remove(self, paths: Iterable[str]) -> set[str]:
        """Remove documents in one transaction. Returns the keys of their chunks."""
        with changing(self.catalogue, self._version_name) as connection:
            return self._delete(connection, paths)

    def clear(self) -> int:
        """Remove all documents, and what any entries were prefilled behind. Returns how many documents there were."""
        with changing(self.catalogue, self._version_name) as connection:
            self.contexts.clear()
            return connection.execute("DELETE FROM documents WHERE namespace = ?", (self.namespace,)).rowcount

    def unneeded(self, keys: Iterable[str]) -> list[str]:
        """Those of ``keys`` that no chunk and no text has."""
        statement = (
            "SELECT 1 FROM chunks WHERE entry_key = ?1 UNION ALL SELECT 1 FROM precomputed WHERE entry_key = ?1 LIMIT 1"
        )
        return sorted({key for key in keys if not self.catalogue.rows(statement, key)})

    def unneeded_entries(self) -> dict[str, int]:
        """The namespace's recorded entries that no chunk and no text has, with their bytes."""
        rows = self.catalogue.rows(
            "SELECT key, bytes FROM entries WHERE namespace = ?"
            " AND NOT EXISTS (SELECT 1 FROM chunks WHERE entry_key = entries.key)"
            " AND NOT EXISTS (SELECT 1 FROM precomputed WHERE entry_key = entries.key) ORDER BY key",
            self.namespace,
        )
        return dict(rows)

    def paths_below(self, root: str) -> list[str]:
        """Documents at ``root`` or in that folder, in order; files only."""
        folder = f"{root.rstrip('/')}/"
        condition, bounds = "metadata IS NULL", list[str]()
        if not self._values.encrypted:  # where names have the order of the paths
            condition += " AND (path = ? OR path > ? AND path < ?)"
            bounds = [root, folder, f"{folder[:-1]}0"]  # "0" follows "/"
        return [path for path in self._paths(condition, *bounds) if f"{path}/".startswith(folder)]

    def totals(self) -> Totals:
        [(documents,)] = self.catalogue.rows("SELECT count(*) FROM documents WHERE namespace = ?", self.namespace)
        [(chunks, id_bytes)] = self.catalogue.rows(
            f"SELECT count(*), coalesce(sum(length(token_ids)), 0) {_IN_NAMESPACE}", self.namespace
        )
        return Totals(documents, chunks, (id_bytes - chunks * self._values.overhead) // 4)

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
                parts = {id: self._values.open("windows.embeddings", id, data) for id, data in windows}
                wholes = ((id, self._values.open("chunks.embedding", id, data)) for id, data in rows)
                vectors = [_search_vectors(whole, parts.get(id, b"")) for id, whole in wholes]
                owners = np.repeat(np.array([id for id, _ in rows], np.int64), [len(each) for each in vectors])
                yield owners, np.concatenate(vectors)

    def chunks(self, ids: Ids) -> dict[int, StoredChunk]:
        """The chunks by id, all of one moment; ids that are gone are left out."""
        rows = self.catalogue.sound_rows(
            ["chunks", "documents"],
            "chunks.id, documents.id, token_ids, entry_key, path, title, ordinal, heading, text, metadata, embedding,"
            f" {HAS_CONTEXT.format(table='chunks')}",
            f"{_IN_NAMESPACE} AND chunks.id IN (SELECT value FROM json_each(?))",
            self.namespace,
            json.dumps(ids.tolist()),
        )
        open = self._values.open
        found: dict[int, StoredChunk] = {}
        for id, document, token_ids, key, path, title, ordinal, heading, text, metadata, embedding, has_context in rows:
            found[id] = StoredChunk(
                token_ids=token_ids_of(open("chunks.token_ids", id, token_ids)),
                entry_key=key,
                document=self._values.unname("documents.path", path),
                title=open("documents.title", document, title),
                ordinal=ordinal,
                heading=open("chunks.heading", id, heading),
                text=open("chunks.text", id, text),
                metadata=open("documents.metadata", document, metadata),
                embedding=open("chunks.embedding", id, embedding),
                in_context=bool(has_context) or (metadata is None and ordinal > 0),
            )
        return found

    def prompt_texts(self, ids: Ids) -> Iterator[tuple[int, str]]:
        """Chunks by id as they stand in prompts; ids that are gone are left out."""
        rows = self.catalogue.rows(
            f"SELECT chunks.id, documents.id, title, heading, text, metadata {_IN_NAMESPACE}"
            " AND chunks.id IN (SELECT value FROM json_each(?))",
            self.namespace,
            json.dumps(ids.tolist()),
        )
        open = self._values.open
        for id, document, title, heading, text, metadata in rows:
            yield (
                id,
                prompt_text(
                    open("documents.title", document, title),
                    open("chunks.heading", id, heading),
                    open("chunks.text", id, text),
                    open("documents.metadata", document, metadata),
                ),
            )

    def text_owners(self) -> Ids:
        """Ids of chunks, ascending: one for each entry, since chunks that share one have the same text."""
        rows = self.catalogue.rows(f"SELECT min(chunks.id) {_IN_NAMESPACE} GROUP BY entry_key", self.namespace)
        return np.sort(np.fromiter((row[0] for row in rows), np.int64, len(rows)))

    def texts(self, ids: Sequence[str]) -> dict[str, GivenText]:
        """Texts that were given, by id; unknown ids are left out."""
        rows = self.catalogue.sound_rows(
            ["chunks", "documents"],
            "chunks.id, documents.id, path, text, metadata, embedding, entry_key",
            f"{_IN_NAMESPACE} AND metadata IS NOT NULL AND path IN (SELECT value FROM json_each(?))",
            self.namespace,
            json.dumps([self._stored_path(id) for id in ids]),
        )
        open = self._values.open
        return {
            self._values.unname("documents.path", path): GivenText(
                open("chunks.text", id, text),
                open("documents.metadata", document, metadata),
                open("chunks.embedding", id, embedding),
                key,
            )
            for id, document, path, text, metadata, embedding, key in rows
        }

    def text_ids(self) -> list[str]:
        """Ids of all texts that were given, in order."""
        return self._paths("metadata IS NOT NULL")

    def entry_count(self) -> int:
        """Number of distinct entries that chunks and texts need."""
        statement = f"SELECT count(DISTINCT entry_key) FROM {_OWNERS} WHERE namespace = ?"
        return int(self.catalogue.rows(statement, self.namespace)[0][0])

    def entries(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Key and token ids of every entry that chunks and texts need, each once, in order of the keys."""
        key = ""
        while rows := self.catalogue.rows(
            f"SELECT entry_key, token_ids, place, row, min(row) FROM {_OWNERS} WHERE namespace = ? AND entry_key > ?"
            f" GROUP BY entry_key ORDER BY entry_key LIMIT {_PAGE}",
            self.namespace,
            key,
        ):
            for key, token_ids, place, row, _ in rows:  # the next page begins after the last key
                yield key, token_ids_of(self._values.open(place, row, token_ids))

    def chunks_before(self, key: str) -> list[list[tuple[int, ...]]]:
        """For each chunk with this entry's key, token ids of the chunks before it in its document, in order."""
        before = []
        places = self.catalogue.rows(
            f"SELECT document_id, ordinal {_IN_NAMESPACE} AND entry_key = ?", self.namespace, key
        )
        for document, ordinal in places:
            statement = "SELECT id, token_ids FROM chunks WHERE document_id = ? AND ordinal < ? ORDER BY ordinal"
            rows = self.catalogue.rows(statement, document, ordinal)
            before.append([token_ids_of(self._values.open("chunks.token_ids", id, data)) for id, data in rows])
        return before

    def _delete(self, connection: Connection, paths: Iterable[str]) -> set[str]:
        """Delete documents with their chunks and return the keys that these had."""
        keys: set[str] = set()
        for path in map(self._stored_path, paths):
            rows = connection.execute(
                f"SELECT DISTINCT entry_key {_IN_NAMESPACE} AND path = ?", (self.namespace, path)
            ).fetchall()
            keys.update(key for (key,) in rows)
            connection.execute("DELETE FROM documents WHERE namespace = ? AND path = ?", (self.namespace, path))
        return keys

    def _paths(self, condition: str, *parameters: object) -> list[str]:
        """Paths of documents, or ids of texts, in order."""
        statement = f"SELECT path FROM documents WHERE namespace = ? AND {condition}"
        rows = self.catalogue.rows(statement, self.namespace, *parameters)
        return sorted(self._values.unname("documents.path", path) for (path,) in rows)

    def _stored_path(self, path: str) -> str:
        return self._values.name("documents.path", path)

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
