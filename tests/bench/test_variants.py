"""Which policies are compared, at which ratio."""

from __future__ import annotations

import pytest

from ragblend.bench.variants import Variant, as_variants, ratio_shown
from ragblend.blend.policies.query import QueryAttention
from ragblend.errors import ConfigError


def test_names_take_the_common_ratio_or_their_own() -> None:
    variants = as_variants(["none", "query@0.1", "query@0.3"], 0.15)
    assert [(each.label, each.policy.name, each.ratio) for each in variants] == [
        ("none", "none", 0.15),
        ("query", "query", 0.1),
        ("query", "query", 0.3),
    ]


def test_a_policy_object_goes_by_its_label() -> None:
    own = Variant("middle layers", QueryAttention(1 / 3, 2 / 3), 0.2)
    assert as_variants(["query", own], 0.2)[1] is own


@pytest.mark.parametrize(
    ("label", "shown"),
    [("full", ""), ("prefix", ""), ("none", ""), ("hkvd", "0.1"), ("query", "0.1"), ("middle layers", "0.1")],
)
def test_a_table_shows_a_ratio_where_it_means_something(label: str, shown: str) -> None:
    assert ratio_shown(label, 0.1) == shown


@pytest.mark.parametrize(
    ("policies", "ratio", "complaint"),
    [
        ([], 0.1, "at least one policy"),
        (["best"], 0.1, "unknown policy 'best'"),
        (["query@much"], 0.1, "'query@much' is not of the form"),
        (["query@1.2"], 0.1, "between 0 and 1, got 1.2"),
        (["query"], -0.1, "between 0 and 1, got -0.1"),
        (["query", "query@0.1"], 0.1, "named twice"),
    ],
)
def test_refused(policies: list[str], ratio: float, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        as_variants(policies, ratio)
