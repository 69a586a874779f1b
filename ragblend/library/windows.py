"""A chunk's windows: a few sentences each, so that what one of them says is not lost in the whole."""

from __future__ import annotations

import re

from ragblend.library.embedding import Embedder, Vectors
from ragblend.prompt import chunk_text

# Two found more than three or four, and nearly as much as one with half the vectors
# (tests/benchmarks/retrieval_study.py).
SENTENCES = 2
# After a full stop and the like with what closes it, and at the end of a line.
_BETWEEN = re.compile(r"(?<=[.!?])[\"'”’)\]]*\s+|(?<=[。！？])|\s*\n\s*")


def windows(text: str, sentences: int = SENTENCES) -> list[str]:
    """``text`` in pieces of so many sentences, the last one shorter; nothing if it is only one piece."""
    found = [sentence for sentence in _BETWEEN.split(text) if sentence and not sentence.isspace()]
    pieces = [" ".join(found[first : first + sentences]) for first in range(0, len(found), sentences)]
    return pieces if len(pieces) > 1 else []


def embed(embedder: Embedder, chunks: list[tuple[str, str, str]]) -> list[tuple[Vectors, Vectors]]:
    """For each chunk (title, heading, text) the vector of the whole, [dimensions], and those of its windows.

    The windows' are [windows, dimensions], and each is embedded under the chunk's title line.
    """
    groups = [[text, *windows(text)] for _, _, text in chunks]
    flat = [
        chunk_text(title, heading, piece)
        for (title, heading, _), group in zip(chunks, groups, strict=True)
        for piece in group
    ]
    vectors = embedder.embed_chunks(flat)
    made = []
    for group in groups:
        own, vectors = vectors[: len(group)], vectors[len(group) :]
        made.append((own[0], own[1:]))
    return made
