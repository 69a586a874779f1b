"""Puts entries until it is killed. Run by test_crash.py, which sends a line for each process to kill.

A line is the first entry to put and a number of moments. A forked child puts entries one after another, and
appends the number of each to ``acknowledged`` once ``put`` has returned. It is killed after so many moments.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

import torch

from ragblend.store.catalogue import Catalogue
from ragblend.store.disk import DiskStore
from tests.store.conftest import numbered_key, random_kv
from tests.store.faults import WatchedFiles
from tests.store.killing import Tell, kill_after


def put_forever(root: Path, number: int, tell: Tell) -> None:
    catalogue = Catalogue(root / "catalogue.db")
    catalogue.connection.set_trace_callback(tell)
    store = DiskStore(root, catalogue, files=WatchedFiles(tell))
    log = os.open(root / "acknowledged", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    while True:
        store.put(numbered_key(number), random_kv(number))
        os.write(log, f"{number}\n".encode())
        number += 1


if __name__ == "__main__":
    torch.set_num_threads(1)
    for line in sys.stdin:
        number, moments = map(int, line.split())
        gone = kill_after(moments, partial(put_forever, Path(sys.argv[1]), number))
        os.write(1, b"gone\n" if gone else b"failed\n")
