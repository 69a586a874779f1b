"""Indexes until it is killed. Run by test_writers.py as: killed_indexer.py LIBRARY DOCUMENTS ACKNOWLEDGED.

For each line on stdin, a number of moments, a forked child indexes the documents and appends the path of each
finished one to a file. It is killed after so many moments.
"""

from __future__ import annotations

import os
import sys

import torch

from ragblend.config import ChunkSettings
from ragblend.library.library import Library
from ragblend.library.progress import Silent
from tests.library import conftest
from tests.store.faults import WatchedFiles
from tests.store.killing import Tell, kill_after


class Acknowledge(Silent):
    def __init__(self, path: str) -> None:
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def document(self, path: str) -> None:
        os.write(self.file, f"{path}\n".encode())


def index(tell: Tell) -> None:
    folder, documents, acknowledged = sys.argv[1:]
    chunk = ChunkSettings(conftest.CHUNK_TOKENS)
    made_of = {"engine": engine, "embedder": conftest.WordEmbedder(), "chunk": chunk, "files": WatchedFiles(tell)}
    with Library.open(folder, **made_of) as library:
        library.catalogue.connection.set_trace_callback(tell)
        library.add([documents], Acknowledge(acknowledged))


if __name__ == "__main__":
    torch.set_num_threads(1)
    engine = conftest.tiny_engine()
    for line in sys.stdin:
        os.write(1, b"gone\n" if kill_after(int(line), index) else b"failed\n")
