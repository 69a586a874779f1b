"""Answers that follow a grammar: every token that would leave it is ruled out before one is chosen.

The grammar engine is llguidance, an optional dependency (``pip install 'ragblend[grammar]'``).
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor

from ragblend.errors import ConfigError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer


class Grammars:
    """Grammars in the tokens of one model. Preparing the tokenizer takes about a second, once.

    tokenizer: a fast tokenizer. eos_token_ids: what may end an answer. vocabulary: columns of the logits.
    """

    def __init__(self, tokenizer: Any, eos_token_ids: list[int], vocabulary: int) -> None:
        self._tokenizer = tokenizer
        self._eos_token_ids = eos_token_ids
        self._vocabulary = vocabulary

    def processor(self, grammar: str) -> GrammarProcessor:
        """A processor for one answer. Raises ConfigError for a bad grammar or where llguidance is missing."""
        try:
            from llguidance import LLMatcher
        except ImportError as error:
            raise ConfigError("a grammar needs llguidance: pip install 'ragblend[grammar]'") from error
        matcher = LLMatcher(self._tokens, LLMatcher.grammar_from_lark(grammar), log_level=0)
        if matcher.is_error():
            raise ConfigError(f"the grammar cannot be used: {' '.join(matcher.get_error().split())}")
        return GrammarProcessor(matcher, self._eos_token_ids)

    @cached_property
    def _tokens(self) -> LLTokenizer:
        from llguidance.hf import from_tokenizer

        return from_tokenizer(self._tokenizer, n_vocab=self._vocabulary, eos_token=self._eos_token_ids)


class GrammarProcessor(LogitsProcessor):
    """Keeps one answer inside its grammar. Belongs to one request.

    Where the grammar is complete only the end of the answer is left. An answer that reaches its length
    limit earlier is cut there, and is then only the beginning of something that follows the grammar.
    """

    def __init__(self, matcher: LLMatcher, eos_token_ids: list[int]) -> None:
        self._matcher = matcher
        self._ends = torch.tensor(eos_token_ids)
        self._seen = -1

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """input_ids: [1, length], the prompt at first, then one more token a call. scores: [1, vocabulary]."""
        if self._seen >= 0:
            self._matcher.consume_tokens(input_ids[0, self._seen :].tolist())
        if self._matcher.is_error():
            raise ConfigError(f"the grammar cannot be followed: {' '.join(self._matcher.get_error().split())}")
        self._seen = input_ids.shape[1]
        return scores.masked_fill(~self._allowed(scores.shape[1]).to(scores.device), -torch.inf)

    def _allowed(self, vocabulary: int) -> Tensor:
        if self._matcher.is_stopped():
            allowed = torch.zeros(vocabulary, dtype=torch.bool)
            allowed[self._ends] = True
            return allowed
        bits = np.unpackbits(np.frombuffer(self._matcher.compute_bitmask(), np.uint8), bitorder="little")
        return torch.from_numpy(bits[:vocabulary]).bool()
