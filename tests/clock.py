"""A clock that tests set."""

from __future__ import annotations


class Clock:
    """Seconds since the epoch, as a test says."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds
