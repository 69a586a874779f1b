"""``python -m ragblend.bench.growth.probe FOLDER CHUNKS N``: opens a library in a process of its own."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import faiss  # noqa: F401  # its import is no part of what is timed
import numpy as np
import psutil

from ragblend.bench.growth.library import DIMENSIONS, entry_of
from ragblend.library.library import Library

Result = TypeVar("Result")


def main(arguments: Sequence[str]) -> None:
    folder, chunks, searches = Path(arguments[0]), int(arguments[1]), int(arguments[2])
    random = np.random.default_rng(7)
    asked = random.standard_normal((searches + 1, DIMENSIONS), dtype=np.float32)
    asked /= np.linalg.norm(asked, axis=1, keepdims=True)
    entries = [entry_of(int(number)) for number in random.integers(chunks, size=200)]
    process = psutil.Process()
    before = process.memory_info().rss
    open_s, library = _timed(lambda: Library.open(folder, create=False, read_only=True))
    first_search_s, _ = _timed(lambda: library.search_vector(asked[0], 6))
    search_s = [_timed(partial(library.search_vector, vector, 6))[0] for vector in asked[1:]]
    lookup_s = [_timed(partial(_look_up, library, *entry))[0] for entry in entries]
    measured = {
        "open_s": open_s,
        "first_search_s": first_search_s,
        "search_s": statistics.median(search_s),
        "lookup_s": statistics.median(lookup_s),
        "memory_bytes": process.memory_info().rss - before,
    }
    sys.stdout.write(json.dumps(measured))
    library.close()


def _timed(run: Callable[[], Result]) -> tuple[float, Result]:
    began = time.perf_counter()
    result = run()
    return time.perf_counter() - began, result


def _look_up(library: Library, key: str, token_ids: tuple[int, ...]) -> None:
    reader = library.store.open(key, token_ids)
    if reader is None:
        raise LookupError(f"chunk {token_ids[0]} is not in the store")
    reader.close()


if __name__ == "__main__":
    main(sys.argv[1:])
