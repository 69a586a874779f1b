"""Chunk KV of random numbers, and stores to put it in."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ragblend.store.base import ChunkKV
from ragblend.store.catalogue import Catalogue
from ragblend.store.disk import DiskStore
from ragblend.store.remote import RemoteStore
from ragblend.testing import numbered_key, random_kv
from ragblend.testing import same_kv as equal_kv


@pytest.fixture
def make_kv() -> Callable[..., ChunkKV]:
    return random_kv


@pytest.fixture
def make_key() -> Callable[..., str]:
    return numbered_key


@pytest.fixture
def same_kv() -> Callable[[object, ChunkKV], bool]:
    return equal_kv


@pytest.fixture
def catalogue(tmp_path: Path) -> Iterator[Catalogue]:
    opened = Catalogue(tmp_path / "catalogue.db")
    yield opened
    opened.close()


@pytest.fixture
def disk(tmp_path: Path, catalogue: Catalogue) -> DiskStore:
    return DiskStore(tmp_path, catalogue)


@dataclass(frozen=True)
class S3:
    """A bucket on a local server."""

    url: str
    options: dict[str, object]


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    """A bucket of moto's S3 server, which runs in a process of its own."""
    command = [sys.executable, str(Path(__file__).with_name("s3_server.py"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        port = int(server.stdout.readline())
        options = {"key": "test", "secret": "test", "endpoint_url": f"http://127.0.0.1:{port}"}
        RemoteStore("s3://bucket", options=options, timeout_s=60)._filesystem.mkdir("bucket")
        yield S3("s3://bucket", options)
        server.stdin.close()
