"""In which order the chunks that a question found stand in its prompt."""

from __future__ import annotations

from collections.abc import Sequence

from ragblend.config import ChunkOrder, require_order
from ragblend.library.report import Hit


def in_order(hits: Sequence[Hit], order: ChunkOrder) -> list[Hit]:
    """``hits``, which come best first, as ``order`` has them; see BlendSettings. Raises ConfigError (unknown order).

    Those of equal scores stay as they came, so that of too many the same ones are left out in any order.
    """
    require_order(order)
    if order == "best-first":
        return list(hits)
    worst_first = sorted(hits, key=lambda hit: hit.score)
    if order == "best-last":
        return worst_first
    best_of = {hit.document: place for place, hit in enumerate(worst_first)}
    return sorted(worst_first, key=lambda hit: (best_of[hit.document], hit.source.chunk))
