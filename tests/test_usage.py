"""Usage in the hosted APIs' dialects, and costs, from one source of truth."""

from __future__ import annotations

import pytest

from ragblend.config import ConfigError
from ragblend.results import Usage
from ragblend.usage import CostReport, Prices, anthropic_usage, gemini_usage, openai_usage, ragblend_usage

USAGE = Usage(
    prompt_tokens=1000,
    cached_tokens=700,
    recomputed_tokens=100,
    computed_tokens=400,
    cache_creation_tokens=300,
    completion_tokens=50,
    cache_creation_5m_tokens=80,
    cache_creation_1h_tokens=200,
)


def test_anthropic_counts_each_prompt_token_once():
    said = anthropic_usage(USAGE)
    assert said["input_tokens"] + said["cache_creation_input_tokens"] + said["cache_read_input_tokens"] == 1000
    assert (said["input_tokens"], said["cache_read_input_tokens"], said["output_tokens"]) == (100, 600, 50)
    assert said["cache_creation"] == {"ephemeral_5m_input_tokens": 100, "ephemeral_1h_input_tokens": 200}


def test_openai_and_gemini_count_read_tokens_among_the_prompt():
    assert openai_usage(USAGE) == {
        "prompt_tokens": 1000,
        "completion_tokens": 50,
        "total_tokens": 1050,
        "prompt_tokens_details": {"cached_tokens": 600},
    }
    assert gemini_usage(USAGE)["cached_content_token_count"] == 600


def test_our_own_adds_up():
    own = ragblend_usage(USAGE)
    assert own["reused_tokens"] + own["computed_tokens"] == own["prompt_tokens"]
    assert own["recomputed_tokens"] == 100


def test_costs_are_those_of_a_price_list():
    report = CostReport.of([USAGE, USAGE], Prices(input=3.0, output=15.0))
    weighted = 100 + 0.1 * 600 + 1.25 * 100 + 2.0 * 200
    assert report.cost == pytest.approx(2 * (3.0 * weighted + 15.0 * 50) / 1e6)
    assert report.cost_without_cache == pytest.approx(2 * (3.0 * 1000 + 15.0 * 50) / 1e6)
    assert report.saved == pytest.approx(report.cost_without_cache - report.cost)


def test_writing_what_nobody_reads_costs_more_than_no_cache():
    written = Usage(1000, 0, 0, 1000, 1000, 1, cache_creation_1h_tokens=1000)
    assert CostReport.of([written]).saved < 0


def test_holding_costs_by_the_hour():
    report = CostReport.of([USAGE], Prices(storage_hour=0.5), storage_token_hours=2_000_000)
    assert report.cost - CostReport.of([USAGE]).cost == pytest.approx(1.0)


def test_negative_prices_are_refused():
    with pytest.raises(ConfigError, match="'read' must not be negative"):
        Prices(read=-0.1)
