"""What tells something of a document, as it stands in the catalogue's rows: as it is, or sealed.

In an encrypted namespace every such value is sealed by itself and bound to its place: the namespace, table, column
and primary key. What rows are looked up by becomes another name instead, the same for the same value, which only the
key turns back. ``docs/store-format.md`` describes the bytes.
"""

from __future__ import annotations

import base64
import binascii
import secrets
from pathlib import Path
from typing import Any, NoReturn

from ragblend.errors import StoreError
from ragblend.store.catalogue import damaged
from ragblend.store.encryption import Cipher

# Columns by table. The other ones hold numbers, and names and keys that tell nothing without the namespace's key.
SEALED: dict[str, tuple[str, ...]] = {
    "documents": ("title", "digest", "metadata"),
    "chunks": ("text", "heading", "token_ids", "embedding"),
    "windows": ("embeddings",),
    "precomputed": ("text", "token_ids"),
    "contexts": ("token_ids",),
    "prefix_runs": ("token_ids", "jump"),
    "prefix_names": ("messages", "token_ids"),
}
NAMED: dict[str, tuple[str, ...]] = {
    "documents": ("path",),
    "precomputed": ("digest",),
    "prefix_names": ("name",),
}

_NONCE_BYTES = 12
_TAG_BYTES = 16
_SIV_KEY_BYTES = 64
_TEXT, _BYTES = b"t", b"b"
# What a sealed value has more than a plain one.
_OVERHEAD = _NONCE_BYTES + len(_TEXT) + _TAG_BYTES


class RowValues:
    """The values of a namespace that is not encrypted: as they are.

    encrypted: whether the namespace is. locked: whether it is, and its key was not given. key_id: of its key, None
    without one. overhead: bytes that a stored value has more than what it stands for.
    """

    encrypted: bool = False
    locked: bool = False
    key_id: str | None = None
    overhead: int = 0

    def require_key(self) -> None:
        """Raise StoreError if the namespace is encrypted and its key was not given."""

    def seal(self, column: str, row: int | str, value: str | bytes | None) -> str | bytes | None:
        """What to store of a value. column: such as ``chunks.text``. row: the primary key. NULL stays NULL."""
        return value

    def open(self, column: str, row: int | str, stored: Any) -> Any:
        """The value that is stored. Raises StoreError for one that was changed, or belongs elsewhere."""
        return stored

    def name(self, column: str, value: str) -> str:
        """What a value is looked up by."""
        return value

    def unname(self, column: str, stored: str) -> str:
        """The value that is looked up by ``stored``. Raises StoreError for one that was changed."""
        return stored


AS_THEY_ARE = RowValues()


class LockedRowValues(RowValues):
    """Those of an encrypted namespace whose key was not given: rows can be counted and deleted, and no more."""

    encrypted = locked = True
    overhead = _OVERHEAD

    def __init__(self, folder: Path, namespace: str, key_id: str) -> None:
        self.key_id = key_id
        self._folder = folder
        self._namespace = namespace

    def require_key(self) -> NoReturn:
        raise StoreError(f"{self._folder}: namespace {self._namespace!r} is encrypted: give its key")

    def seal(self, column: str, row: int | str, value: str | bytes | None) -> NoReturn:
        self.require_key()

    def open(self, column: str, row: int | str, stored: Any) -> NoReturn:
        self.require_key()

    def name(self, column: str, value: str) -> NoReturn:
        self.require_key()

    def unname(self, column: str, stored: str) -> NoReturn:
        self.require_key()


class SealedRowValues(RowValues):
    """Those of an encrypted namespace: AES-256-GCM with a random nonce, names by AES-SIV (RFC 5297).

    Random nonces bound a namespace to 2**32 values under one key, some billion chunks (NIST SP 800-38D, 8.3).
    catalogue: its path, for messages.
    """

    encrypted = True
    overhead = _OVERHEAD

    def __init__(self, cipher: Cipher, namespace: str, catalogue: Path) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV

        self.key_id = cipher.key_id
        self._values = AESGCM(cipher.derive(namespace.encode(), "row values"))
        self._names = AESSIV(cipher.derive(namespace.encode(), "row names", _SIV_KEY_BYTES))
        self._catalogue = catalogue

    def seal(self, column: str, row: int | str, value: str | bytes | None) -> bytes | None:
        if value is None:
            return None
        plain = _TEXT + value.encode() if isinstance(value, str) else _BYTES + value
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + self._values.encrypt(nonce, plain, _place(column, row))

    def open(self, column: str, row: int | str, stored: Any) -> Any:
        from cryptography.exceptions import InvalidTag

        if stored is None:
            return None
        if not isinstance(stored, bytes) or len(stored) < _OVERHEAD:
            raise self._damaged(column)
        try:
            plain = self._values.decrypt(stored[:_NONCE_BYTES], stored[_NONCE_BYTES:], _place(column, row))
        except InvalidTag as error:
            raise self._damaged(column) from error
        return plain[1:].decode() if plain.startswith(_TEXT) else plain[1:]

    def name(self, column: str, value: str) -> str:
        return base64.urlsafe_b64encode(self._names.encrypt(value.encode(), [column.encode()])).decode()

    def unname(self, column: str, stored: str) -> str:
        from cryptography.exceptions import InvalidTag

        try:
            return self._names.decrypt(base64.urlsafe_b64decode(stored), [column.encode()]).decode()
        except (InvalidTag, binascii.Error, ValueError, TypeError) as error:
            raise self._damaged(column) from error

    def _damaged(self, column: str) -> StoreError:
        return damaged(self._catalogue, f"a value of {column} was changed, or belongs elsewhere")


def _place(column: str, row: int | str) -> bytes:
    return f"{column} {row}".encode()
