"""From a path to bytes, and from bytes to text, without trusting either."""

from __future__ import annotations

import codecs
import os
import stat
from pathlib import Path

from ragblend.errors import DocumentError

MAX_BYTES = 64 * 1024 * 1024

# Longer marks first: UTF-32's little-endian mark begins with UTF-16's.
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_TEXT_CONTROLS = "\t\n\r\f\b\x1b"
# Western European prose has a few percent of accented letters; other encodings and packed data have far more.
_MOST_CP1252_LETTERS = 0.25


def read_file(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """The bytes of a regular, non-empty file of at most ``max_bytes``. Raises DocumentError with the reason.

    Links are not followed, and nothing that could block or have side effects (pipes, devices) is opened.
    """
    try:
        _refuse_unless_regular(path, path.lstat())
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            _refuse_unless_regular(path, status)
            data = file.read(max_bytes + 1) if status.st_size <= max_bytes else b""
    except OSError as error:
        raise DocumentError(str(path), (error.strerror or str(error)).lower()) from error
    if max(len(data), status.st_size) > max_bytes:
        size = max(len(data), status.st_size)
        raise DocumentError(str(path), f"{size:,} bytes, more than the {max_bytes:,} that are read")
    if not data:
        raise DocumentError(str(path), "empty file")
    return data


def _refuse_unless_regular(path: Path, status: os.stat_result) -> None:
    kinds = {
        stat.S_IFIFO: "a named pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFLNK: "a symbolic link",
        stat.S_IFDIR: "a folder",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    if not stat.S_ISREG(status.st_mode):
        raise DocumentError(str(path), f"{kinds.get(stat.S_IFMT(status.st_mode), 'special')}, not a regular file")


def refuse_binary(path: str, data: bytes) -> None:
    """Raise DocumentError for data that is text in no encoding."""
    if _marked_encoding(data) is None and b"\0" in data:
        raise DocumentError(path, "binary file (contains NUL bytes)")


def decode(path: str, data: bytes) -> str:
    r"""Text of a file: by its byte-order mark, else UTF-8, else CP1252 where that is plausible.

    Line ends become ``\n``. Raises DocumentError for binary data and unknown encodings.
    """
    refuse_binary(path, data)
    encoding = _marked_encoding(data)
    try:
        text = data.decode(encoding or "utf-8")
    except UnicodeDecodeError as error:
        if encoding is not None:
            raise DocumentError(path, f"damaged {encoding} text at byte {error.start:,}") from error
        text = _decode_cp1252(path, data)
    if "\0" in text:
        raise DocumentError(path, "binary file (contains NUL characters)")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _marked_encoding(data: bytes) -> str | None:
    return next((name for mark, name in _BYTE_ORDER_MARKS if data.startswith(mark)), None)


def _decode_cp1252(path: str, data: bytes) -> str:
    reason = "not text in UTF-8, UTF-16, UTF-32 or CP1252"
    try:
        text = data.decode("cp1252")
    except UnicodeDecodeError as error:
        raise DocumentError(path, reason) from error
    controls = any(character < " " and character not in _TEXT_CONTROLS for character in set(text))
    beyond_ascii = len(data.translate(None, bytes(range(0x80))))
    if controls or beyond_ascii > _MOST_CP1252_LETTERS * len(data):
        raise DocumentError(path, reason)
    return text
