"""Loads that fail while a question is answered: its answer is that of a run without a cache, and the next one hits."""

from __future__ import annotations

import errno

import pytest

from ragblend.config import GenerationSettings, PrefixSettings
from ragblend.store.files import Files

SHORT = GenerationSettings(max_tokens=4)


class FailingOnce(Files):
    """Raises ``error`` at one of the allocations or reads, and counts them."""

    def __init__(self, operation: str, error: Exception) -> None:
        self._operation = operation
        self._error = error
        self.begin(-1)

    def begin(self, moment: int) -> None:
        self._moment = moment
        self.passed = 0

    def _pass(self, operation: str) -> None:
        if operation == self._operation:
            self.passed += 1
            if self.passed - 1 == self._moment:
                raise self._error

    def allocate(self, length: int) -> memoryview:
        self._pass("allocate")
        return super().allocate(length)

    def read(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        self._pass("read")
        return super().read(descriptor, buffer, offset)


@pytest.mark.parametrize(
    ("operation", "error", "cause"),
    [("allocate", MemoryError(), "alloc"), ("read", OSError(errno.EIO, "Input/output error"), "corrupt")],
    ids=["no memory", "EIO"],
)
def test_at_each_load(open_library, make_engine, docs, operation, error, cause):
    files = FailingOnce(operation, error)
    engine = make_engine(prefix=PrefixSettings(automatic=False))
    library = open_library(engine=engine, files=files)
    library.add([docs])

    def ask(**options: object):
        return library.ask("warranty", k=3, generation=SHORT, **options)

    expected = ask(policy="full").token_ids
    files.begin(-1)
    assert ask(ratio=1.0).hits == 3
    loads = files.passed
    assert loads >= 3 * (2 + engine.adapter.layer_count)  # of each chunk: its header, token ids and layers
    for moment in range(loads):
        files.begin(moment)
        answer = ask(ratio=1.0)
        assert answer.token_ids == expected
        assert answer.misses == 1
        assert library.store.misses[cause] == moment + 1
        assert library.store.pins() == set()
        if cause == "corrupt":  # what could not be read was set aside
            library.repair()
    files.begin(-1)
    assert ask(ratio=1.0).hits == 3
