"""Runs the workload of faults.py and kills itself at one moment. Run by test_faults.py.

Each line on stdin is a folder and the number of a moment: a forked child works in that folder and
sends itself SIGKILL at that moment. Moments are before and after each operation on files, and before
each SQL statement. "killed", or "done" when the workload has fewer moments, is printed for each.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch

from ragblend.store.catalogue import Catalogue
from ragblend.store.disk import DiskStore
from tests.store.faults import WatchedFiles, workload


def run(root: Path, moment: int) -> None:
    passed = 0

    def pass_moment(*_: object) -> None:
        nonlocal passed
        if passed == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        passed += 1

    log = os.open(root / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    catalogue = Catalogue(root / "catalogue.db")
    catalogue.connection.set_trace_callback(pass_moment)
    store = DiskStore(root, catalogue, files=WatchedFiles(pass_moment))
    workload(store, lambda line: os.write(log, f"{line}\n".encode()))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for line in sys.stdin:
        root, moment = line.rsplit(maxsplit=1)
        child = os.fork()
        if child == 0:
            run(Path(root), int(moment))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        os.write(1, b"killed\n" if killed else b"done\n" if status == 0 else b"failed\n")
