"""Selection policies by name: the built-in ones, and those that packages offer as plugins."""

from __future__ import annotations

from importlib.metadata import entry_points

from ragblend.blend.policies.base import Policy, Request
from ragblend.blend.policies.drift import DriftCorrected
from ragblend.blend.policies.hkvd import HighDeviation
from ragblend.blend.policies.query import QueryAttention
from ragblend.blend.policies.simple import Full, Leading, NoRecompute, Prefix
from ragblend.errors import ConfigError

__all__ = ["PLUGIN_GROUP", "Policy", "Request", "policy_named", "policy_names"]

PLUGIN_GROUP = "ragblend.policies"
_BUILT_IN: dict[str, type[Policy]] = {
    policy.name: policy
    for policy in (Full, Prefix, NoRecompute, Leading, HighDeviation, QueryAttention, DriftCorrected)
}


def policy_names() -> tuple[str, ...]:
    """Names that ``policy_named`` takes."""
    return (*_BUILT_IN, *(point.name for point in entry_points(group=PLUGIN_GROUP)))


def policy_named(name: str) -> Policy:
    """The policy called ``name``. Raises ConfigError, listing the known names."""
    if name in _BUILT_IN:
        return _BUILT_IN[name]()
    for point in entry_points(group=PLUGIN_GROUP, name=name):
        policy: Policy = point.load()()
        return policy
    raise ConfigError(f"unknown policy {name!r}: choose one of {', '.join(policy_names())}")
