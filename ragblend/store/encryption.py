"""Encryption at rest: what a file looks like sealed, and the key that lies outside of the store.

AES-256-GCM in segments, so that one layer can be read and checked without the rest of its file:

- every file has a key of its own, HKDF-SHA256 of the namespace's key with 32 random bytes as salt, so that
  no nonce is ever used twice, however many files there are;
- a segment's nonce is its number, and its associated data are the file's header (with the length of the
  plain bytes) and the label: a segment at another place, in another file, of another entry or namespace, or
  a file cut at a segment's end is found out.

``docs/store-format.md`` describes the bytes.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ragblend.config import require
from ragblend.errors import ConfigError, CorruptEntryError, PathNotFoundError
from ragblend.store.format import StaleEntryError
from ragblend.store.source import ByteSource, allocate

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
SEGMENT_BYTES = 1 << 16
MAGIC = b"RBSEAL01"
_KEY_ID_BYTES = 16
_SALT_BYTES = 32
_LENGTH_BYTES = 8
HEADER_BYTES = len(MAGIC) + _KEY_ID_BYTES + _SALT_BYTES + _LENGTH_BYTES
_TAG_BYTES = 16


class Cipher:
    """Seals and opens the bytes of one namespace. The key is never shown, logged or written.

    key_id: tells one key from another and nothing about it. Raises ConfigError (a key of another length, or the
    package ``cryptography`` is missing).
    """

    def __init__(self, key: bytes) -> None:
        require(len(key) == KEY_BYTES, f"an encryption key has {KEY_BYTES} bytes, got {len(key)}")
        self._key = key
        self.key_id = self.derive(b"", "key id")[:_KEY_ID_BYTES].hex()

    @classmethod
    def from_file(cls, path: Path) -> Cipher:
        """The key in a file of 64 hexadecimal digits (``openssl rand -hex 32``) or 32 raw bytes.

        Raises PathNotFoundError; ConfigError for another content and for a file that others can read.
        """
        try:
            with path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                data = file.read(1024)
        except OSError as error:
            raise PathNotFoundError(f"{path}: the encryption key cannot be read ({error.strerror})") from error
        if stat.S_IMODE(mode) & 0o077:
            raise ConfigError(f"{path}: others can read the encryption key: chmod 600 it")
        if re.fullmatch(rb"[0-9a-fA-F]{64}", data.strip()):
            data = bytes.fromhex(data.strip().decode())
        if len(data) != KEY_BYTES:
            raise ConfigError(
                f"{path} holds no encryption key: it has 64 hexadecimal digits, as from `openssl rand -hex 32`"
            )
        return cls(data)

    def __repr__(self) -> str:
        return f"Cipher(key_id={self.key_id!r})"

    def secret_name(self, name: str) -> str:
        """Another name for ``name`` that nobody can tell or check without the key."""
        return self.derive(name.encode(), "name").hex()

    def derive(self, salt: bytes, purpose: str, nbytes: int = KEY_BYTES) -> bytes:
        """A key for one purpose (and salt), of which nobody gets to the namespace's key or to another one."""
        with _cryptography_needed():
            from cryptography.hazmat.primitives.hashes import SHA256
            from cryptography.hazmat.primitives.kdf.hkdf import HKDF
        return HKDF(SHA256(), nbytes, salt, f"ragblend {purpose}".encode()).derive(self._key)

    def seal(self, label: str, pieces: Iterable[bytes | memoryview]) -> Iterator[bytes]:
        """The sealed form of ``pieces`` put together, as pieces to write one after another.

        Only who knows the key and says the same label can open it.
        """
        plain = memoryview(b"".join(pieces))
        salt = secrets.token_bytes(_SALT_BYTES)
        header = MAGIC + bytes.fromhex(self.key_id) + salt + len(plain).to_bytes(_LENGTH_BYTES, "little")
        aead, associated = self._aead(salt), header + label.encode()
        yield header
        for number, begin in enumerate(range(0, len(plain), SEGMENT_BYTES)):
            yield aead.encrypt(_nonce(number), plain[begin : begin + SEGMENT_BYTES], associated)

    def open(self, label: str, source: ByteSource) -> OpenedSource:
        """The plain bytes of a sealed source, which is closed with what is returned.

        Raises StaleEntryError (sealed with another key), CorruptEntryError, EntryAllocationError.
        """
        header = bytes(source.read(0, HEADER_BYTES)) if source.nbytes >= HEADER_BYTES else b""
        if not header.startswith(MAGIC):
            raise CorruptEntryError(f"{source.name}: not encrypted, or damaged")
        key_id, salt, length = _split(header)
        if key_id != self.key_id:
            raise StaleEntryError(f"{source.name}: encrypted with another key")
        segments = -(-length // SEGMENT_BYTES)
        if source.nbytes != HEADER_BYTES + length + segments * _TAG_BYTES:
            raise CorruptEntryError(f"{source.name}: {source.nbytes:,} bytes do not hold {length:,} encrypted ones")
        return OpenedSource(source, self._aead(salt), header + label.encode(), length)

    def open_whole(self, label: str, source: ByteSource) -> memoryview:
        """All plain bytes of a sealed source at once. Raises as ``open`` does."""
        opened = self.open(label, source)
        return opened.read(0, opened.nbytes)

    def _aead(self, salt: bytes) -> AESGCM:
        with _cryptography_needed():
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        return AESGCM(self.derive(salt, "file"))


class OpenedSource:
    """The plain bytes of a sealed source (a ByteSource). A segment is decrypted when a read touches it."""

    def __init__(self, source: ByteSource, aead: AESGCM, associated: bytes, nbytes: int) -> None:
        self.name = source.name
        self.nbytes = nbytes
        self._source = source
        self._aead = aead
        self._associated = associated

    def read(self, begin: int, length: int) -> memoryview:
        end = begin + length
        if end > self.nbytes:
            raise CorruptEntryError(f"{self.name}: the data ends at byte {self.nbytes:,}")
        data = allocate(self.name, length)
        first, last = begin // SEGMENT_BYTES, -(-end // SEGMENT_BYTES)
        sealed_bytes = min(last * SEGMENT_BYTES, self.nbytes) - first * SEGMENT_BYTES + (last - first) * _TAG_BYTES
        sealed = self._source.read(HEADER_BYTES + first * (SEGMENT_BYTES + _TAG_BYTES), sealed_bytes)
        for number in range(first, last):
            taken, sealed = sealed[: SEGMENT_BYTES + _TAG_BYTES], sealed[SEGMENT_BYTES + _TAG_BYTES :]
            start = number * SEGMENT_BYTES
            stop = start + len(taken) - _TAG_BYTES
            if begin <= start and stop <= end:
                self._decrypt(number, taken, data[start - begin : stop - begin])
            else:
                plain = memoryview(bytearray(stop - start))
                self._decrypt(number, taken, plain)
                low, high = max(start, begin), min(stop, end)
                data[low - begin : high - begin] = plain[low - start : high - start]
        return data

    def close(self) -> None:
        self._source.close()

    def _decrypt(self, number: int, sealed: memoryview, plain: memoryview) -> None:
        from cryptography.exceptions import InvalidTag

        try:
            self._aead.decrypt_into(_nonce(number), sealed, self._associated, plain)
        except InvalidTag as error:
            raise CorruptEntryError(f"{self.name}: segment {number} was changed, or belongs elsewhere") from error


def _nonce(number: int) -> bytes:
    return number.to_bytes(12, "big")


def _split(header: bytes) -> tuple[str, bytes, int]:
    """Key id, salt and length of the plain bytes."""
    salt_begin = len(MAGIC) + _KEY_ID_BYTES
    length_begin = salt_begin + _SALT_BYTES
    return (
        header[len(MAGIC) : salt_begin].hex(),
        header[salt_begin:length_begin],
        int.from_bytes(header[length_begin:], "little"),
    )


@contextlib.contextmanager
def _cryptography_needed() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise ConfigError("encryption needs the package cryptography: pip install 'ragblend[encryption]'") from error
