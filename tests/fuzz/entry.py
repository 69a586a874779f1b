"""Feeds arbitrary bytes to the reader of chunk KV files. It may raise EntryError and nothing else.

run.py runs it with atheris, and test_targets.py on the kept files and on mutations that hypothesis makes of them.
"""

from __future__ import annotations

import contextlib

from ragblend.errors import EntryError
from ragblend.store.reader import ChunkReader
from ragblend.store.source import MemorySource
from tests.store.make_hostile import KEY


def read_entry(content: bytes) -> int:
    """Read an entry to its end or its first error; how many layers it gave."""
    layers = 0
    with contextlib.suppress(EntryError):
        reader = ChunkReader(MemorySource("entry", content), KEY)
        for index in range(reader.layer_count):
            reader.layer(index)
            layers += 1
    return layers
