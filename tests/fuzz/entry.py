"""Feeds arbitrary bytes to the reader of chunk KV files. It may raise EntryError and nothing else.

atheris is no dependency; ``pip install atheris``, then::

    python -m tests.fuzz.entry tests/store/hostile      # until a crash, or Ctrl-C
    python -m tests.fuzz.entry -max_total_time=600 tests/store/hostile

Without atheris, ``tests/fuzz/test_targets.py`` runs the same function on the kept files and on
mutations of them that hypothesis makes.
"""

from __future__ import annotations

import contextlib
import sys

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


if __name__ == "__main__":
    import atheris

    atheris.instrument_all()
    atheris.Setup(sys.argv, read_entry)
    atheris.Fuzz()
