"""What ``bench ttft`` reports. How fast anything is, no test says."""

from __future__ import annotations

import pytest

from ragblend.bench import ttft
from ragblend.bench.data import handbook_texts
from ragblend.engine import Engine
from ragblend.errors import ConfigError, ContextOverflowError


def test_a_row_for_every_context_and_policy(tiny_engine: Engine) -> None:
    steps: list[tuple[int, int]] = []
    report = ttft.run(
        tiny_engine,
        contexts=[96, 128],
        policies=["full", "none", "query@0.5"],
        ratio=0.25,
        repeats=2,
        chunk_tokens=32,
        progress=lambda *step: steps.append(step),
    )
    assert [(row.context, row.policy, row.ratio) for row in report.rows] == [
        (context, policy, ratio)
        for context in (96, 128)
        for policy, ratio in (("full", 0.25), ("none", 0.25), ("query", 0.5))
    ]
    assert all(row.ttft_s > 0 and row.speedup_vs_full > 0 for row in report.rows)
    assert steps == [(done, 6) for done in range(1, 7)]

    full, none, query = report.rows[:3]
    assert full.computed_tokens == full.prompt_tokens
    suffix = none.computed_tokens
    assert full.prompt_tokens == len(tiny_engine.template.prefix_ids) + 96 + suffix
    assert query.computed_tokens == suffix + round(0.5 * 96)


def test_the_report_says_what_was_measured_and_compared_with(tiny_engine: Engine) -> None:
    report = ttft.run(tiny_engine, contexts=[64], policies=["full"], ratio=0.0, repeats=3, chunk_tokens=32)
    [baseline], [row] = report.baseline, report.rows
    assert baseline.prompt_tokens == row.prompt_tokens
    assert baseline.ragblend_full_s == row.ttft_s
    assert baseline.transformers_s > 0
    assert (report.machine.model, report.machine.dtype) == ("tiny-llama", "float32")


def test_a_codec_loads_fewer_bytes(tiny_engine: Engine) -> None:
    """On storage as slow as this, loading takes as long as there are bytes: a quarter and a little of float32's."""
    settings = {"contexts": [96], "policies": ["none"], "ratio": 0.0, "repeats": 1, "chunk_tokens": 32}
    raw = ttft.run(tiny_engine, **settings, storage_mb_s=0.5)
    compact = ttft.run(tiny_engine, **settings, storage_mb_s=0.5, codec="int8")
    assert (raw.codec, compact.codec) == ("raw", "int8")
    assert 0.2 < compact.rows[0].load_s / raw.rows[0].load_s < 0.6


def test_loading_computing_and_what_they_are_measured_against(tiny_engine: Engine) -> None:
    report = ttft.run(
        tiny_engine,
        contexts=[96],
        policies=["full", "none", "query@0.5"],
        ratio=0.0,
        repeats=1,
        chunk_tokens=32,
        storage_mb_s=0.5,
    )
    full, none, query = report.rows
    assert report.storage_mb_s == 0.5
    config = tiny_engine.adapter.model.config
    head_dim = config.hidden_size // config.num_attention_heads
    kv_bytes = 96 * config.num_hidden_layers * 2 * config.num_key_value_heads * head_dim * 4
    for row in (none, query):
        # Not load_s: the device reads ahead while the reader does not ask, and load_s counts only while it does.
        assert row.ttft_s >= kv_bytes / 0.5e6
        assert row.load_s > 0
        assert row.of_bound == row.ttft_s / max(row.load_s, row.compute_s)
        assert row.floor_s is not None
        assert row.of_floor == row.compute_s / row.floor_s
    assert (full.load_s, full.floor_s, full.of_floor) == (0.0, None, None)


def test_the_engine_is_as_before(tiny_engine: Engine) -> None:
    before = tiny_engine.adapter.model.config._attn_implementation
    ttft.run(tiny_engine, contexts=[32], policies=["none"], ratio=0.0, repeats=1)
    assert tiny_engine.adapter.model.config._attn_implementation == before


def test_own_text_repeated_passages_count_once(tiny_engine: Engine) -> None:
    with pytest.raises(ConfigError, match="only 40"):
        ttft.run(tiny_engine, contexts=[64], policies=["none"], ratio=0.0, repeats=1, texts=["x" * 40, "x" * 40])


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"repeats": 0}, "repeats must be at least 1"),
        ({"contexts": []}, "at least one context"),
        ({"contexts": [64, 0]}, "at least 1 token, got 0"),
        ({"chunk_tokens": 0}, "chunk tokens must be at least 1"),
        ({"policies": ["best"]}, "unknown policy"),
        ({"ratio": 1.2}, "between 0 and 1"),
        ({"contexts": [10**7]}, f"there are only {len(''.join(handbook_texts()).encode()):,}"),
    ],
)
def test_refused(tiny_engine: Engine, change: dict[str, object], complaint: str) -> None:
    settings = {"contexts": [32], "policies": ["none"], "ratio": 0.1, "repeats": 1} | change
    with pytest.raises(ConfigError, match=complaint):
        ttft.run(tiny_engine, **settings)


def test_a_context_longer_than_the_models(tiny_engine: Engine) -> None:
    with pytest.raises(ContextOverflowError):
        ttft.run(tiny_engine, contexts=[512], policies=["none"], ratio=0.0, repeats=1)
