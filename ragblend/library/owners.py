"""Whose chunks kept prefixes were built on."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ragblend.library.precomputed import PrecomputedTexts
from ragblend.library.records import Records


@dataclass(frozen=True, slots=True)
class ChunkOwners:
    """Documents and precomputed texts (the prefix cache's Owners)."""

    records: Records
    texts: PrecomputedTexts

    def version(self) -> int:
        return self.records.version() + self.texts.version()

    def known(self, keys: Collection[str]) -> set[str]:
        return set(keys) - set(self.records.unneeded(keys))
