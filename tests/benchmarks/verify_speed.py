"""Does `verify` run at disk speed? Verifies a library of many chunks, and reads the same files without any check.

    python tests/benchmarks/verify_speed.py [--chunks 1000] [--tokens 256] [--rounds 3] [--folder DIR]

The library holds random KV in the embedded model's shapes (30 layers of 3 heads of 64, bfloat16), 5.9 MB
a chunk at 256 tokens. Each pass starts without the files in the page cache, as far as the kernel drops them, and
disks vary: the passes take turns, and medians are printed. Plain reading is done by one reader and by two at once.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import numpy as np
import torch

from ragblend.kernels.layout import LayerKV
from ragblend.library.chunking import Chunk
from ragblend.library.library import Library
from ragblend.store.base import ChunkKV
from ragblend.store.key import digest_fields

LAYERS, HEADS, HEAD_DIM = 30, 3, 64


def fill(library: Library, chunks: int, tokens: int) -> None:
    vector = np.eye(1, 384, dtype=np.float32)[0]
    for number in range(chunks):
        generator = torch.Generator().manual_seed(number)
        layer = torch.randn(2, HEADS, tokens, HEAD_DIM, generator=generator).to(torch.bfloat16)
        ids = tuple(range(number, number + tokens))
        key = digest_fields(str(number))
        library.store.put(key, ChunkKV(ids, tuple(LayerKV(layer[0], layer[1]) for _ in range(LAYERS))))
        chunk = Chunk(f"chunk {number}", "", 0, ids)
        library._records.replace(f"/{number}", "", key, [chunk], [key], [vector])
    library._retriever.save()


def drop_from_cache(folder: Path) -> None:
    for path in folder.glob("kv/*/*/*"):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def read_plainly(folder: Path, readers: int) -> int:
    with ThreadPoolExecutor(readers) as pool:
        return sum(pool.map(read_file, sorted(folder.glob("kv/*/*/*"))))


def read_file(path: Path) -> int:
    buffer = bytearray(1 << 20)
    total = 0
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            total += count
    return total


def seconds_of(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chunks", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where to make the library: a folder on the disk to measure")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name, Library.open(Path(name) / "test.rag") as library:
        fill(library, options.chunks, options.tokens)
        nbytes = read_plainly(library.folder, 1)
        print(f"{options.chunks:,} chunks, {nbytes / 1e9:.2f} GB, sound: {library.verify().ok}")
        passes: dict[str, Callable[[], object]] = {
            "plain, one reader": lambda: read_plainly(library.folder, 1),
            "plain, two readers": lambda: read_plainly(library.folder, 2),
            "verify": library.verify,
        }
        seconds: dict[str, list[float]] = {name: [] for name in passes}
        for _ in range(options.rounds):
            for name, work in passes.items():
                drop_from_cache(library.folder)
                seconds[name].append(seconds_of(work))
    for name, each in seconds.items():
        print(f"{name:20} {median(each):7.2f} s  {nbytes / median(each) / 1e6:8,.0f} MB/s")


if __name__ == "__main__":
    main()
