"""Reading ahead: in order, on one thread, no further than is allowed, and over when it is closed."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from ragblend.blend.readahead import ReadAhead

PATIENCE_S = 30
WINDOW = 2


class Source:
    """Gives a layer's number as text, and tells what was read. ``before`` lets a test act before that."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.threads: set[threading.Thread] = set()
        self.done = [threading.Event() for _ in range(6)]
        self.before = lambda layer: None

    def read(self, layer: int) -> str:
        self.begun.append(layer)
        self.threads.add(threading.current_thread())
        self.before(layer)
        self.done[layer].set()
        return str(layer)


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def ahead(source: Source) -> Iterator[ReadAhead[str]]:
    made = ReadAhead(source.read, range(6), WINDOW)
    yield made
    made.close()


def test_layers_are_read_once_in_order_on_one_other_thread(source, ahead):
    assert [ahead.take(layer) for layer in range(6)] == list("012345")
    assert source.begun == [0, 1, 2, 3, 4, 5]
    (thread,) = source.threads
    assert thread is not threading.current_thread()


def test_reading_begins_by_itself_and_goes_no_further_than_the_window(source, ahead):
    for taken in range(4):
        assert source.done[taken + WINDOW - 1].wait(PATIENCE_S)
        assert not source.done[taken + WINDOW].wait(0.02)
        assert ahead.take(taken) == str(taken)


def test_a_layer_out_of_turn_costs_the_others_nothing(source, ahead):
    assert ahead.take(5) == "5"
    assert [ahead.take(layer) for layer in range(5)] == list("01234")
    assert source.begun == [0, 1, 2, 3, 4, 5]


def test_what_is_not_to_be_read_cannot_be_taken(ahead):
    with pytest.raises(KeyError):
        ahead.take(7)


def test_an_error_reaches_who_takes_the_layer_and_only_then(source, ahead):
    def before(layer: int) -> None:
        if layer == 3:
            raise ZeroDivisionError

    source.before = before
    assert [ahead.take(layer) for layer in range(3)] == list("012")
    with pytest.raises(ZeroDivisionError):
        ahead.take(3)


def test_closing_waits_for_what_is_being_read_and_begins_nothing_more(source):
    reading, go_on = threading.Event(), threading.Event()

    def before(_: int) -> None:
        reading.set()
        assert go_on.wait(PATIENCE_S)

    source.before = before
    ahead = ReadAhead(source.read, range(6), WINDOW)
    assert reading.wait(PATIENCE_S)
    threading.Timer(0.05, go_on.set).start()
    ahead.close()
    assert source.begun == [0]
    assert source.done[0].is_set()
    ahead.close()
    assert not any(thread.is_alive() for thread in source.threads)
