"""Reading files and decoding their bytes."""

from __future__ import annotations

import os
import socket

import pytest

from ragblend.errors import DocumentError
from ragblend.library.reading import decode, read_file


def reason(call, *arguments: object) -> str:
    with pytest.raises(DocumentError) as caught:
        call(*arguments)
    return caught.value.reason


class TestReadFile:
    def test_a_regular_file(self, tmp_path):
        path = tmp_path / "a"
        path.write_bytes(b"abc")
        assert read_file(path, max_bytes=3) == b"abc"

    def test_empty_and_huge_files(self, tmp_path):
        path = tmp_path / "a"
        path.touch()
        assert reason(read_file, path) == "empty file"
        os.truncate(path, 10**12)
        assert reason(read_file, path) == "1,000,000,000,000 bytes, more than the 67,108,864 that are read"

    def test_what_is_no_file(self, tmp_path):
        fifo, link, folder = tmp_path / "fifo", tmp_path / "link", tmp_path / "folder"
        os.mkfifo(fifo)
        link.symlink_to("fifo")
        folder.mkdir()
        assert reason(read_file, fifo) == "a named pipe, not a regular file"
        assert reason(read_file, link) == "a symbolic link, not a regular file"
        assert reason(read_file, folder) == "a folder, not a regular file"

    def test_sockets_and_devices(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)  # the names of sockets are short
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("socket")
            assert reason(read_file, tmp_path / "socket") == "a socket, not a regular file"
        assert reason(read_file, tmp_path.__class__("/dev/zero")) == "a device, not a regular file"

    def test_a_file_that_is_gone(self, tmp_path):
        assert reason(read_file, tmp_path / "gone") == "no such file or directory"


class TestDecode:
    TEXT = "Größe: 5 € – naïve\nsecond line\n"

    @pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "cp1252"])
    def test_encodings(self, encoding):
        assert decode("a", self.TEXT.encode(encoding)) == self.TEXT

    @pytest.mark.parametrize("mark", [b"\xff\xfe", b"\xfe\xff"])
    def test_both_byte_orders(self, mark):
        encoding = "utf-16-le" if mark == b"\xff\xfe" else "utf-16-be"
        assert decode("a", mark + self.TEXT.encode(encoding)) == self.TEXT

    def test_line_ends(self):
        assert decode("a", b"a\r\nb\rc\n") == "a\nb\nc\n"

    def test_nul_is_binary(self):
        assert reason(decode, "a", b"text\0text") == "binary file (contains NUL bytes)"
        assert reason(decode, "a", "a\0".encode("utf-16")) == "binary file (contains NUL characters)"

    def test_damaged_text_behind_a_mark(self):
        assert reason(decode, "a", b"\xff\xfea") == "damaged utf-16 text at byte 2"

    @pytest.mark.parametrize(
        "data",
        [
            bytes(range(1, 256)),
            "Привет, мир".encode("koi8-r"),
            "保証は二年です".encode("shift-jis"),
            b"caf\xe9 \x01\x02",
        ],
        ids=["every byte", "koi8-r", "shift-jis", "control characters"],
    )
    def test_other_encodings_are_not_guessed(self, data):
        assert reason(decode, "a", data) == "not text in UTF-8, UTF-16, UTF-32 or CP1252"
