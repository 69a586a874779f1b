"""Indexes until it is killed. Run by test_writers.py as: killed_indexer.py LIBRARY DOCUMENTS ACKNOWLEDGED.

For each line on stdin, a number of seconds, a forked child indexes the documents and appends the path
of each finished one to a file. After that time it is killed, and "gone" is printed. Forking spares a
start of Python and torch for every kill; and only a parent knows that a process id is still its
child's, until it has waited for it.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import torch

from ragblend.config import ChunkSettings
from ragblend.library.library import Library
from ragblend.library.progress import Silent
from tests.library import conftest


class Acknowledge(Silent):
    def __init__(self, path: str) -> None:
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def document(self, path: str) -> None:
        os.write(self.file, f"{path}\n".encode())


def index(engine: object, folder: str, documents: str, acknowledged: str) -> None:
    chunk = ChunkSettings(conftest.CHUNK_TOKENS)
    with Library.open(folder, engine=engine, embedder=conftest.WordEmbedder(), chunk=chunk) as library:
        library.add([documents], Acknowledge(acknowledged))


if __name__ == "__main__":
    torch.set_num_threads(1)
    engine = conftest.tiny_engine()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            index(engine, *sys.argv[1:])
            os._exit(0)
        time.sleep(float(line))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.write(1, b"gone\n")
