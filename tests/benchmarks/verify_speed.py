"""Does `verify` run at disk speed? Verifies a library of many chunks, and reads the same files without any check.

    python tests/benchmarks/verify_speed.py [--chunks 1000] [--tokens 256] [--folder DIR]

The library holds random KV in the embedded model's shapes (30 layers of 3 heads of 64, bfloat16), 5.9 MB
a chunk at 256 tokens. Both passes start without the files in the page cache, as far as the kernel drops them.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

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


def read_plainly(folder: Path) -> int:
    buffer = bytearray(1 << 20)
    total = 0
    for path in sorted(folder.glob("kv/*/*/*")):
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                total += count
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chunks", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--folder", type=Path, help="where to make the library: a folder on the disk to measure")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name, Library.open(Path(name) / "test.rag") as library:
        fill(library, options.chunks, options.tokens)
        drop_from_cache(library.folder)
        began = time.perf_counter()
        nbytes = read_plainly(library.folder)
        plain_s = time.perf_counter() - began
        drop_from_cache(library.folder)
        began = time.perf_counter()
        report = library.verify()
        verify_s = time.perf_counter() - began
    print(f"{report.checked:,} chunks, {nbytes / 1e9:.2f} GB, sound: {report.ok}")
    print(f"plain reading  {plain_s:7.2f} s  {nbytes / plain_s / 1e6:8,.0f} MB/s")
    print(f"verify         {verify_s:7.2f} s  {nbytes / verify_s / 1e6:8,.0f} MB/s")


if __name__ == "__main__":
    main()
