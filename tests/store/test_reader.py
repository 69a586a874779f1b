"""Files that change, vanish or are something else while they are read."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

import pytest

from ragblend.errors import CorruptEntryError, EntryAllocationError
from ragblend.store.files import Files
from ragblend.store.format import encode_chunk
from ragblend.store.reader import ChunkReader
from ragblend.store.source import FileSource
from tests.store.faults import PiecemealFiles, WatchedFiles


@pytest.fixture
def kv(make_kv):
    return make_kv()


@pytest.fixture
def path(tmp_path, kv, make_key):
    path = tmp_path / "entry.safetensors"
    path.write_bytes(b"".join(encode_chunk(make_key(), kv)))
    return path


@pytest.fixture
def reader(path, make_key):
    with contextlib.closing(ChunkReader(FileSource(path), make_key())) as opened:
        yield opened


def test_a_file_removed_while_it_is_read_is_read_to_the_end(path, reader, kv, same_kv):
    path.unlink()
    assert same_kv(reader, kv)


@pytest.mark.parametrize("length", [0, 1000, -1])
def test_a_file_cut_short_while_it_is_read(path, reader, length):
    os.truncate(path, length if length >= 0 else path.stat().st_size - 1)
    with pytest.raises(CorruptEntryError, match="ends at byte"):
        reader.layer(2)


def test_a_file_overwritten_while_it_is_read(path, reader):
    with path.open("r+b") as file:
        file.seek(-10, os.SEEK_END)
        file.write(b"other bytes"[:10])
    reader.layer(0)
    with pytest.raises(CorruptEntryError, match="checksum"):
        reader.layer(2)


@pytest.mark.parametrize(
    ("operation", "error", "raised", "message"),
    [
        ("read", OSError(errno.EIO, "Input/output error"), CorruptEntryError, "Input/output error at byte"),
        ("read", OSError(errno.ENOMEM, "Cannot allocate memory"), EntryAllocationError, "Cannot allocate"),
        ("allocate", MemoryError(), EntryAllocationError, "no memory for 768 bytes"),
    ],
)
def test_an_error_in_a_layer_says_whether_the_entry_is_to_blame(path, make_key, operation, error, raised, message):
    files = WatchedFiles()
    with contextlib.closing(ChunkReader(FileSource(path, files), make_key())) as reader:

        def fail(_: int, name: str) -> None:
            if name == operation:
                raise error

        files.watch = fail
        with pytest.raises(raised, match=message):
            reader.layer(0)


def test_memory_that_torch_does_not_have():
    with pytest.raises(MemoryError):
        Files().allocate(1 << 60)


def test_short_reads_are_continued(path, kv, same_kv, make_key):
    with contextlib.closing(ChunkReader(FileSource(path, PiecemealFiles()), make_key())) as reader:
        assert same_kv(reader, kv)


def test_a_pipe_in_the_files_place_does_not_block(tmp_path, make_key):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CorruptEntryError, match="not a regular file"):
        FileSource(tmp_path / "pipe")


def test_links_are_not_followed(tmp_path, path, make_key):
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(OSError, match="symbolic link"):
        FileSource(tmp_path / "link")


def next_descriptor() -> int:
    with Path(os.devnull).open() as file:
        return file.fileno()


def test_a_refused_file_is_closed(path, make_key):
    path.write_bytes(path.read_bytes()[:-1])
    before = next_descriptor()
    with pytest.raises(CorruptEntryError):
        ChunkReader(FileSource(path), make_key())
    assert next_descriptor() == before
