"""Killing a process at a moment of its work, without waiting for any time to pass.

Work announces its moments (operations on files, SQL statements) in a pipe, without stopping there. Whoever counts
them sends SIGKILL after so many, which arrives wherever the work has got to by then. Forking spares a start of Python
and torch for every kill; and only a parent knows that a process id is still its child's, until it has waited for it.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable

Tell = Callable[..., object]


def kill_after(moments: int, work: Callable[[Tell], None]) -> bool:
    """Fork a child that does ``work`` and kill it after ``moments`` of them. False if it failed by itself."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            work(lambda *_: os.write(writing, b"."))
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(writing)
    left = moments
    while left and (told := os.read(reading, left)):
        left -= len(told)
    if not left:
        os.kill(child, signal.SIGKILL)
    os.close(reading)
    _, status = os.waitpid(child, 0)
    return status == 0 or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL)
