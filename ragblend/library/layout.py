"""What lies where in a library folder."""

from __future__ import annotations

from pathlib import Path

from ragblend.store.key import digest_fields

CATALOGUE = "catalogue.sqlite"
WRITER_LOCK = "writer.lock"
INDEX = "index"


def index_file(folder: Path, namespace: str) -> Path:
    """A namespace's search index."""
    return folder / INDEX / f"{digest_fields(namespace)}.faiss"
