"""What is compared: a policy at a ratio."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ragblend.blend.policies import Policy, policy_named, policy_names
from ragblend.config import Ratio, fixed_ratio, require, require_ratio
from ragblend.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Variant:
    """``label`` names the policy in reports; unlike the policy's name it may be of any wording."""

    label: str
    policy: Policy
    ratio: Ratio

    def __post_init__(self) -> None:
        require_ratio(self.ratio, self.label)


def as_variants(policies: Sequence[str | Variant], ratio: Ratio) -> list[Variant]:
    """Each policy as a variant; a name may carry a ratio of its own: ``query@0.1``.

    Raises ConfigError for no policies, an unknown one, a ratio outside 0 to 1 and one that occurs twice.
    """
    require(bool(policies), "name at least one policy to measure")
    made = [policy if isinstance(policy, Variant) else _parse(policy, ratio) for policy in policies]
    seen: set[tuple[str, Ratio]] = set()
    for variant in made:
        require((variant.label, variant.ratio) not in seen, f"{variant.label} at {variant.ratio} is named twice")
        seen.add((variant.label, variant.ratio))
    return made


def as_fixed_variants(policies: Sequence[str | Variant], ratio: Ratio) -> list[Variant]:
    """As ``as_variants``, where a row needs one ratio for all requests. Raises ConfigError for ``auto``, too."""
    variants = as_variants(policies, ratio)
    for variant in variants:
        fixed_ratio(variant.ratio)
    return variants


def ratio_shown(label: str, ratio: float) -> str:
    """The ratio as a table shows it; nothing for a policy to which it means nothing."""
    takes_ratio = label not in policy_names() or policy_named(label).takes_ratio
    return f"{ratio:g}" if takes_ratio else ""


def _parse(text: str, ratio: Ratio) -> Variant:
    name, at, own_ratio = text.strip().partition("@")
    try:
        chosen = "auto" if own_ratio == "auto" else float(own_ratio) if at else ratio
    except ValueError as error:
        raise ConfigError(f"{text!r} is not of the form policy@ratio, such as query@0.1 or query@auto") from error
    return Variant(name, policy_named(name), chosen)
