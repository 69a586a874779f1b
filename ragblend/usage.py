"""Token counts in the dialects of the hosted APIs, and what a session cost and saved.

One source of truth, ``results.Usage``: a prompt's tokens are read (their KV was there and was used as it
was), written (computed, and kept for later prompts) or the rest (computed and not kept).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ragblend.config import require
from ragblend.results import Usage

_MILLION = 1_000_000


def read_tokens(usage: Usage) -> int:
    """Prompt tokens that were not computed."""
    return usage.cached_tokens - usage.recomputed_tokens


def ragblend_usage(usage: Usage) -> dict[str, int]:
    """In our own words: ``prompt = reused + computed``, and of the computed ones, ``recomputed`` had KV."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "reused_tokens": read_tokens(usage),
        "recomputed_tokens": usage.recomputed_tokens,
        "computed_tokens": usage.computed_tokens,
        "completion_tokens": usage.completion_tokens,
    }


def anthropic_usage(usage: Usage) -> dict[str, Any]:
    """Anthropic's Messages API: ``input_tokens`` is only what was neither read nor written."""
    written = usage.cache_creation_tokens
    return {
        "input_tokens": usage.computed_tokens - written,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": read_tokens(usage),
        "cache_creation": {
            "ephemeral_5m_input_tokens": written - usage.cache_creation_1h_tokens,
            "ephemeral_1h_input_tokens": usage.cache_creation_1h_tokens,
        },
        "output_tokens": usage.completion_tokens,
    }


def openai_usage(usage: Usage) -> dict[str, Any]:
    """OpenAI's chat completions."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": read_tokens(usage)},
    }


def gemini_usage(usage: Usage) -> dict[str, int]:
    """Gemini's usage metadata."""
    return {
        "prompt_token_count": usage.prompt_tokens,
        "cached_content_token_count": read_tokens(usage),
        "candidates_token_count": usage.completion_tokens,
        "total_token_count": usage.prompt_tokens + usage.completion_tokens,
    }


@dataclass(frozen=True, slots=True)
class Prices:
    """input, output: for a million tokens, in any currency. The others are multiples of ``input``: for tokens that
    are written for five minutes or without a time to live, written for an hour, and read; and for a million tokens
    that a named cache holds for an hour. The defaults are those of hosted APIs. Raises ConfigError below 0.
    """

    input: float = 1.0
    output: float = 5.0
    write_5m: float = 1.25
    write_1h: float = 2.0
    read: float = 0.1
    storage_hour: float = 0.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            require(getattr(self, name) >= 0, f"the price {name!r} must not be negative, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class CostReport:
    """Sums of tokens, what they cost, and what they had cost without a cache."""

    prompt_tokens: int
    read_tokens: int
    written_tokens: int
    completion_tokens: int
    cost: float
    cost_without_cache: float

    @property
    def saved(self) -> float:
        """Negative when more was written than was ever read."""
        return self.cost_without_cache - self.cost

    @classmethod
    def of(
        cls, usages: Iterable[Usage], prices: Prices | None = None, *, storage_token_hours: float = 0.0
    ) -> CostReport:
        """The cost of a session's requests. storage_token_hours: tokens that were held, times the hours."""
        usages = list(usages)
        return cls.from_totals(
            prompt=sum(usage.prompt_tokens for usage in usages),
            read=sum(map(read_tokens, usages)),
            written=sum(usage.cache_creation_tokens for usage in usages),
            written_1h=sum(usage.cache_creation_1h_tokens for usage in usages),
            completion=sum(usage.completion_tokens for usage in usages),
            prices=prices,
            storage_token_hours=storage_token_hours,
        )

    @classmethod
    def from_totals(
        cls,
        *,
        prompt: int,
        read: int,
        written: int,
        written_1h: int,
        completion: int,
        prices: Prices | None = None,
        storage_token_hours: float = 0.0,
    ) -> CostReport:
        """The cost of so many tokens."""
        prices = prices or Prices()
        weighted = (
            prompt
            - read
            - written
            + prices.read * read
            + prices.write_5m * (written - written_1h)
            + prices.write_1h * written_1h
            + prices.storage_hour * storage_token_hours
        )
        answers = prices.output * completion / _MILLION
        return cls(
            prompt_tokens=prompt,
            read_tokens=read,
            written_tokens=written,
            completion_tokens=completion,
            cost=prices.input * weighted / _MILLION + answers,
            cost_without_cache=prices.input * prompt / _MILLION + answers,
        )
