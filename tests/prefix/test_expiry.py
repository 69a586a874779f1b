"""What is past its time to live goes by itself, although nobody asks for anything."""

from __future__ import annotations

import math
import threading
import time

import pytest

from ragblend.prefix.alarm import Alarm

DEADLINE_S = 20.0


class Bell:
    def __init__(self) -> None:
        self.rang = threading.Event()

    def ring(self) -> None:
        self.rang.set()


@pytest.fixture
def alarm():
    """An alarm, and what it rings."""
    bell = Bell()
    made = Alarm(time.time, bell.ring)
    yield made, bell
    made.close()


def waiting() -> int:
    return sum(thread.name == "ragblend-prefix-expiry" for thread in threading.enumerate())


def gone_by(count: int) -> None:
    """Wait until no more than ``count`` threads wait."""
    deadline = time.monotonic() + DEADLINE_S
    while waiting() > count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_it_rings_when_the_time_has_come(alarm):
    made, bell = alarm
    before = waiting()
    made.set(time.time() + 3600)
    assert waiting() == before + 1
    made.set(time.time() + 0.05)  # the earlier time counts
    made.set(time.time() + 7200)
    assert bell.rang.wait(DEADLINE_S)


def test_it_rings_again_when_it_is_set_again(alarm):
    made, bell = alarm
    for _ in range(2):
        bell.rang.clear()
        made.set(time.time())
        assert bell.rang.wait(DEADLINE_S)


def test_a_time_in_the_past_is_now_and_infinity_is_never(alarm):
    made, bell = alarm
    before = waiting()
    made.set(math.inf)
    assert waiting() == before
    made.set(time.time() - 100)
    assert bell.rang.wait(DEADLINE_S)


def test_closed_it_does_not_ring(alarm):
    made, bell = alarm
    before = waiting()
    made.set(time.time() + 3600)
    made.close()
    made.close()
    made.set(time.time())
    gone_by(before)
    assert not bell.rang.is_set()


def test_its_thread_ends_with_it():
    before = waiting()
    alarm = Alarm(time.time, Bell().ring)
    alarm.set(time.time() + 3600)
    assert waiting() == before + 1
    del alarm
    gone_by(before)
