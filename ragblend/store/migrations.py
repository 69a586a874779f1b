"""The catalogue's schema, as the steps that led to it."""

from __future__ import annotations

from ragblend.store.rows import check_rows

# Numbered by position: a catalogue of format n has had the first n migrations applied.
MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
    CREATE TABLE entries (
        key TEXT PRIMARY KEY,
        namespace TEXT NOT NULL,
        tokens INTEGER NOT NULL,
        bytes INTEGER NOT NULL,
        created_at REAL NOT NULL
    );
    CREATE TABLE documents (
        id INTEGER PRIMARY KEY,
        namespace TEXT NOT NULL,
        path TEXT NOT NULL,
        title TEXT NOT NULL,
        digest TEXT NOT NULL,
        indexed_at REAL NOT NULL,
        UNIQUE (namespace, path)
    );
    CREATE TABLE chunks (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        document_id INTEGER NOT NULL REFERENCES documents (id) ON DELETE CASCADE,
        ordinal INTEGER NOT NULL,
        text TEXT NOT NULL,
        heading TEXT NOT NULL,
        start INTEGER NOT NULL,
        token_ids BLOB NOT NULL,
        embedding BLOB NOT NULL,
        entry_key TEXT NOT NULL,
        UNIQUE (document_id, ordinal)
    );
    CREATE INDEX chunks_entry_key ON chunks (entry_key);
    """,
    # JSON for a text that a program gave under an id (its path), NULL for a file.
    "ALTER TABLE documents ADD COLUMN metadata TEXT",
    """
    CREATE TABLE precomputed (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        namespace TEXT NOT NULL,
        digest TEXT NOT NULL,
        text TEXT NOT NULL,
        token_ids BLOB NOT NULL,
        entry_key TEXT NOT NULL,
        added_at REAL NOT NULL,
        UNIQUE (namespace, digest)
    );
    CREATE INDEX precomputed_entry_key ON precomputed (entry_key);
    """,
    "".join(check_rows(table) for table in ("settings", "entries", "documents", "chunks", "precomputed")),
    # What entries took to compute, which were evicted to keep a limit, and what a remote tier has yet to be told.
    """
    CREATE TABLE costs (key TEXT PRIMARY KEY, namespace TEXT NOT NULL, seconds REAL NOT NULL) WITHOUT ROWID;
    CREATE TABLE evictions (key TEXT PRIMARY KEY, namespace TEXT NOT NULL, evicted_at REAL NOT NULL) WITHOUT ROWID;
    CREATE TABLE outbox (key TEXT PRIMARY KEY, namespace TEXT NOT NULL, operation TEXT NOT NULL) WITHOUT ROWID;
    CREATE INDEX entries_namespace ON entries (namespace);
    """
    + "".join(check_rows(table) for table in ("costs", "evictions", "outbox")),
    # The prefix cache: runs of blocks, whose key covers what must be right in a row; named caches; counters.
    """
    CREATE TABLE prefix_runs (
        key TEXT PRIMARY KEY,
        namespace TEXT NOT NULL,
        start INTEGER NOT NULL,
        token_ids BLOB NOT NULL,
        parent BLOB NOT NULL,
        hashes BLOB NOT NULL,
        jump TEXT,
        built_on TEXT NOT NULL,
        turns INTEGER NOT NULL,
        used_at REAL NOT NULL,
        ttl_s REAL,
        reads INTEGER NOT NULL,
        read_tokens INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX prefix_runs_namespace ON prefix_runs (namespace);
    CREATE TABLE prefix_names (
        id TEXT PRIMARY KEY,
        name TEXT NOT NULL,
        namespace TEXT NOT NULL,
        model TEXT NOT NULL,
        messages TEXT NOT NULL,
        token_ids BLOB NOT NULL,
        ttl_s REAL NOT NULL,
        created_at REAL NOT NULL,
        used_at REAL NOT NULL,
        UNIQUE (namespace, model, name)
    ) WITHOUT ROWID;
    CREATE TABLE prefix_hours (
        id TEXT PRIMARY KEY,
        namespace TEXT NOT NULL,
        hour INTEGER NOT NULL,
        requests INTEGER NOT NULL,
        hits INTEGER NOT NULL,
        prompt_tokens INTEGER NOT NULL,
        read_tokens INTEGER NOT NULL,
        written_tokens INTEGER NOT NULL,
        written_5m_tokens INTEGER NOT NULL,
        written_1h_tokens INTEGER NOT NULL,
        completion_tokens INTEGER NOT NULL
    ) WITHOUT ROWID;
    """
    + "".join(check_rows(table) for table in ("prefix_runs", "prefix_names", "prefix_hours")),
    # The vectors of the windows of chunks that have some, one after the other.
    """
    CREATE TABLE windows (
        chunk_id INTEGER PRIMARY KEY REFERENCES chunks (id) ON DELETE CASCADE,
        embeddings BLOB NOT NULL
    );
    """
    + check_rows("windows"),
    # Until here, only the files of an encrypted namespace were: its rows are sealed when it is opened with its key.
    """
    INSERT INTO settings (name, value)
        SELECT 'unsealed:' || substr(name, 12), 'rows' FROM settings WHERE substr(name, 1, 11) = 'encryption:';
    """,
    # What entries of texts that a program gave were prefilled behind. Up to here, all of them stand alone.
    """
    CREATE TABLE contexts (entry_key TEXT PRIMARY KEY, namespace TEXT NOT NULL, token_ids BLOB NOT NULL);
    CREATE INDEX contexts_namespace ON contexts (namespace);
    """
    + check_rows("contexts"),
)
