"""A timer that rings when something is past its time, also where nobody asks for anything any more."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable

# A clock may be set, and a machine may sleep: it is looked at again after so many seconds at most.
_LONGEST_S = 3600.0


class Alarm:
    """Calls ``ring`` in a thread of its own; there is one only while there is something to wait for.

    The thread does not keep the alarm alive, and ends with it. clock: seconds since the epoch.
    """

    def __init__(self, clock: Callable[[], float], ring: Callable[[], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._at = math.inf
        self._end: Callable[[], object] = lambda: None
        self._closed = False
        self._lock = threading.Lock()

    def set(self, at: float) -> None:
        """Ring at ``at`` or before, for who is called sets it again; infinity is never."""
        with self._lock:
            if self._closed or at >= self._at:
                return
            self._end()
            self._at = at
            delay = min(max(0.0, at - self._clock()), _LONGEST_S)
            timer = threading.Timer(delay, _ring, (weakref.ref(self),))
            timer.name = "ragblend-prefix-expiry"
            timer.daemon = True
            timer.start()
            self._end = weakref.finalize(self, timer.cancel)

    def close(self) -> None:
        """Never ring again. Twice is no error."""
        with self._lock:
            self._closed = True
            self._end()

    def _rang(self) -> bool:
        """Whether the time was still to be waited for; it is not any more."""
        with self._lock:
            self._at = math.inf
            return not self._closed


def _ring(alarm: weakref.ref[Alarm]) -> None:
    set_alarm = alarm()
    if set_alarm is not None and set_alarm._rang():
        set_alarm._ring()
