"""``ratio="auto"``: as much is recomputed as the time allows that loading takes anyway."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ragblend.blend.loader import Loader
from ragblend.blend.plan import Plan
from ragblend.blend.policies import Policy
from ragblend.blend.profile import Profile

# Ratios come in steps, so that a slightly faster read does not make another answer.
_STEPS = 20


@dataclass(frozen=True)
class Controller:
    """The largest ratio whose recompute hides behind loading, but at least ``floor``.

    Yao et al., "CacheBlend" (arXiv 2405.16444), section 5.1, take the storage's bandwidth for given. Here it is seen:
    a chunk comes from a disk, the page cache, memory or a network, and the request's first layers tell from which.
    profile: gives the model's, and is asked only where there is something to choose.
    """

    floor: float
    profile: Callable[[], Profile]

    def ratio(self, policy: Policy, plan: Plan, loader: Loader) -> float:
        """For one request. Raises LostChunkError."""
        candidates = plan.candidates.numel()
        if not candidates or self.floor == 1.0:
            return self.floor
        profile, load_s = self.profile(), loader.expected_s()
        for step in range(_STEPS, 0, -1):
            ratio = step / _STEPS
            if ratio <= self.floor:
                break
            rows = policy.work(plan, round(ratio * candidates), loader.layer_count)
            if profile.seconds(rows, len(plan)) <= load_s:
                return ratio
        return self.floor
