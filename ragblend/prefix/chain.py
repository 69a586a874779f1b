"""Hash chains over blocks of token ids: who may reuse the KV of a prompt's beginning.

A block's hash covers everything that its KV depends on: model, namespace, and all tokens up to its
end (as vLLM's automatic prefix caching, Kwon et al., arXiv 2309.06180). Behind reused chunks KV is
approximate. It depends on the whole prompt, from whose question the recomputed tokens follow, and on
how it was blended, so the chain goes on from a seed that covers those as well (``blended``): an
approximate block never has the hash of an exact one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from ragblend.store.key import digest_fields

VERSION = 1
TOKEN_BYTES = 4
_NEXT, _BLENDED = b"\x00", b"\x01"

Reused = tuple[tuple[int, int, str], ...]
"""Start, length and key of every piece of approximate KV that a request reused."""


def chain_root(namespace: str, model: str, block_tokens: int) -> bytes:
    """The hash before the first block. model: a digest of all that the model's KV depends on."""
    return bytes.fromhex(digest_fields("prefix", str(VERSION), namespace, model, str(block_tokens)))


def next_hash(parent: bytes, block: bytes) -> bytes:
    """The hash of the block of ids that follows ``parent``."""
    return hashlib.sha256(_NEXT + parent + block).digest()


@dataclass(frozen=True, slots=True)
class Blend:
    """How approximate KV came about. policy, ratio (a number, or a name for how it was chosen): of the request.

    reused: what it was made from.
    """

    policy: str
    ratio: float | str
    reused: Reused = ()

    def digest(self) -> bytes:
        fields = [field for start, count, key in self.reused for field in (str(start), str(count), key)]
        return bytes.fromhex(digest_fields(self.policy, repr(self.ratio), *fields))


def blended_seed(parent: bytes, rest: bytes, blend: Blend) -> bytes:
    """The hash from which a blended request's chain goes on. rest: its prompt's ids behind ``parent``."""
    return hashlib.sha256(_BLENDED + parent + rest + blend.digest()).digest()


def blocks_of(ids: bytes, first: int, last: int, block_tokens: int) -> Sequence[bytes]:
    """Blocks ``first`` to ``last - 1`` of a prompt's ids."""
    size = block_tokens * TOKEN_BYTES
    return [ids[block * size : (block + 1) * size] for block in range(first, last)]
