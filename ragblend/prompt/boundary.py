"""Where in a text another one may begin or end without cutting a word or a composed character."""

from __future__ import annotations

import unicodedata

import numpy as np
import numpy.typing as npt

from ragblend.prompt.fingerprint import code_points

Flags = npt.NDArray[np.bool_]

_JOINER = "\u200d"


def boundaries(text: str) -> Flags:
    """For each place 0..len(text) between two characters: whether something may begin or end there.

    Not inside a word, nor between a character and the marks that belong to it. Scripts in wide
    characters (Chinese, Japanese) write words without space, and may be cut anywhere.
    """
    allowed = np.ones(len(text) + 1, np.bool_)
    if not text:
        return allowed
    distinct, which = np.unique(code_points(text), return_inverse=True)
    characters = [chr(code) for code in distinct.tolist()]
    word = np.array([_is_in_words(character) for character in characters])[which]
    extends = np.array([character == _JOINER or _is_mark(character) for character in characters])[which]
    joins = np.array([character == _JOINER for character in characters])[which]
    allowed[1:-1] = ~(word[:-1] & word[1:] | extends[1:] | joins[:-1])
    allowed[0] = not extends[0]
    return allowed


def _is_in_words(character: str) -> bool:
    return character.isalnum() and unicodedata.east_asian_width(character) not in "WF"


def _is_mark(character: str) -> bool:
    return unicodedata.category(character).startswith("M")
