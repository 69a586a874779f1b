"""A clock that tests set."""

from __future__ import annotations

import pytest

from tests.clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()
