"""Chunks to measure on: running text cut at an even number of tokens, and text that no prompt had before."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from itertools import islice

from ragblend.bench.data import handbook_texts
from ragblend.errors import ConfigError
from ragblend.prompt import PromptTemplate

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


def cut(
    template: PromptTemplate, texts: Sequence[str] | None, context: int, chunk_tokens: int
) -> list[tuple[int, ...]]:
    """``context`` tokens of ``texts`` (None: the example handbook) in chunks; the last may be shorter.

    Raises ConfigError where there is too little text.
    """
    given = handbook_texts() if texts is None else texts
    # Retrieved passages repeat in the questions of a data set; a prompt repeats none.
    tokens = (token for text in dict.fromkeys(given) for token in template.text_ids(text))
    ids = tuple(islice(tokens, context))
    if len(ids) < context:
        raise ConfigError(
            f"a context of {context:,} tokens needs that much text, but there are only {len(ids):,}: "
            "give a larger data file, or smaller contexts"
        )
    return [ids[start : start + chunk_tokens] for start in range(0, context, chunk_tokens)]


def shuffled_sentences(texts: Sequence[str], seed: int) -> list[str]:
    """The texts' sentences in another order: as long and as wordy, but shared with no other prompt."""
    sentences = [sentence for text in dict.fromkeys(texts) for sentence in _SENTENCE_END.split(text) if sentence]
    random.Random(seed).shuffle(sentences)
    return [" ".join(sentences)]
