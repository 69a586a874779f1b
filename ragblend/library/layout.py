"""What lies where in a library folder."""

from __future__ import annotations

CATALOGUE = "catalogue.sqlite"
WRITER_LOCK = "writer.lock"
CHUNK_KV = "kv"
INDEX = "index"
