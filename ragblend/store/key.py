"""What an entry's key is made of: content, never a name."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np

# Of the fields below. Which version a file has is no part of it: that follows from the codec, which is.
KEY_VERSION = 1


def digest_fields(*fields: bytes | memoryview | str) -> str:
    """SHA-256 (hex) over length-prefixed fields, so that no two field lists collide by concatenation.

    A memoryview is one of single bytes.
    """
    hasher = hashlib.sha256()
    for value in fields:
        data = value.encode() if isinstance(value, str) else value
        hasher.update(len(data).to_bytes(8, "little"))
        hasher.update(data)
    return hasher.hexdigest()


def token_bytes(token_ids: Sequence[int]) -> bytes:
    """Token ids as little-endian int32 bytes, the form in which they are hashed and stored."""
    return np.asarray(token_ids, dtype="<i4").tobytes()


def token_ids_of(data: bytes) -> tuple[int, ...]:
    """The inverse of ``token_bytes``."""
    return tuple(np.frombuffer(data, "<i4").tolist())


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """Digests of everything that changes a model's KV. Two models share KV only if all are equal."""

    weights: str
    tokenizer: str
    config: str
    dtype: str
    adapter: str
    quantisation: str
    rope: str

    def digest(self) -> str:
        return digest_fields(*astuple(self))


def entry_key(
    namespace: str, identity: ModelIdentity, anchor_ids: Sequence[int], token_ids: Sequence[int], codec: str = "raw"
) -> str:
    """Key of a chunk's KV (hex SHA-256): the design's identity, field by field."""
    return digest_fields(
        str(KEY_VERSION),
        namespace,
        *astuple(identity),
        token_bytes(anchor_ids),
        codec,
        token_bytes(token_ids),
    )
