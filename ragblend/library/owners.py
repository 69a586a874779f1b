"""Whose chunks kept prefixes were built on."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ragblend.library.known import KnownTexts
from ragblend.library.precomputed import PrecomputedTexts
from ragblend.library.records import Records


@dataclass(frozen=True, slots=True)
class ChunkOwners:
    """Documents and precomputed texts (the prefix cache's Owners)."""

    records: Records
    texts: PrecomputedTexts
    found: KnownTexts

    def version(self) -> int:
        return self.records.version() + self.texts.version()

    def known(self, keys: Collection[str]) -> set[str]:
        return set(keys) - set(self.records.unneeded(keys))

    def key_of(self, text: str) -> str | None:
        chunk = self.found.chunk(text)
        return chunk.key if chunk else None
