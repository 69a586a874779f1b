"""Feeds arbitrary bytes to SQLite as a catalogue. It may raise StoreError and nothing else. See run.py."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from ragblend.errors import StoreError
from ragblend.library.records import Records
from ragblend.store.catalogue import Catalogue


def read_catalogue(content: bytes) -> None:
    """Open a catalogue, read all that questions read, and check it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "catalogue.sqlite"
        path.write_bytes(content)
        with contextlib.suppress(StoreError), contextlib.closing(Catalogue(path, read_only=True)) as catalogue:
            records = Records(catalogue, "default")
            ids = records.chunk_ids()
            records.chunks(ids)
            list(records.embeddings(ids))
            catalogue.verify()
