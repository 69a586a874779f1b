"""Puts entries until it is killed. Run by test_crash.py, which sends a line for each process to kill.

Each line on stdin starts or kills one. A number is the first entry to put: a forked child puts them
one after another and appends each number to ``acknowledged`` once ``put`` has returned. "kill" kills
it, and "gone" is printed. Forking spares a start of Python and torch for every kill; and only a
parent knows that a process id is still its child's, until it has waited for it.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from pathlib import Path

import torch

from ragblend.store.catalogue import Catalogue
from ragblend.store.disk import DiskStore

conftest = runpy.run_path(str(Path(__file__).with_name("conftest.py")))


def put_forever(root: Path, number: int) -> None:
    store = DiskStore(root, Catalogue(root / "catalogue.db"))
    log = os.open(root / "acknowledged", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    while True:
        store.put(conftest["numbered_key"](number), conftest["random_kv"](number))
        os.write(log, f"{number}\n".encode())
        number += 1


if __name__ == "__main__":
    torch.set_num_threads(1)
    child = 0
    for line in sys.stdin:
        if line == "kill\n":
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.write(1, b"gone\n")
            continue
        child = os.fork()
        if child == 0:
            put_forever(Path(sys.argv[1]), int(line))
