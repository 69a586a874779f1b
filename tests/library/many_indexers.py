"""Several processes that index into one library at once. Run by test_processes.py: LIBRARY FOLDER...

Each folder is indexed by a forked child of its own, which waits as long as others write. The exit
status is the number of children that failed.
"""

from __future__ import annotations

import os
import sys
import traceback

import torch

from ragblend.config import ChunkSettings
from ragblend.errors import LibraryBusyError
from ragblend.library.library import Library
from tests.library import conftest


def index(engine: object, library: str, folder: str) -> None:
    while True:
        try:
            chunk = ChunkSettings(conftest.CHUNK_TOKENS)
            with Library.open(library, engine=engine, embedder=conftest.WordEmbedder(), chunk=chunk) as opened:
                opened.add([folder])
                return
        except LibraryBusyError:
            continue


if __name__ == "__main__":
    torch.set_num_threads(1)
    engine = conftest.tiny_engine()
    library, *folders = sys.argv[1:]
    for folder in folders:
        if os.fork() == 0:
            try:
                index(engine, library, folder)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
    sys.exit(sum(os.wait()[1] != 0 for _ in folders))
