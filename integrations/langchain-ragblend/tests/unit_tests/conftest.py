"""Unit tests open no sockets: a model that runs here needs none."""

from __future__ import annotations

import pytest
from pytest_socket import disable_socket


@pytest.fixture(autouse=True)
def _no_sockets(socket_enabled: None) -> None:
    disable_socket(allow_unix_socket=True)  # asyncio wakes its loop through one
