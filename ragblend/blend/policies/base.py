"""What a selection policy is: given a planned request, the pass over the rows to compute."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ragblend.blend.loader import Loader
from ragblend.blend.plan import Plan, Reuse
from ragblend.models.adapter import DecoderAdapter
from ragblend.models.canvas import Canvas
from ragblend.models.rows import RowRun


@dataclass(frozen=True)
class Request:
    """A planned request on its canvas, as a policy sees it."""

    adapter: DecoderAdapter
    plan: Plan
    canvas: Canvas
    loader: Loader
    ratio: float

    @property
    def budget(self) -> int:
        """How many candidates the policy may recompute."""
        return round(self.ratio * self.plan.candidates.numel())

    def run(self, rows: Tensor) -> RowRun:
        """A pass over ``rows`` that places each layer before it is computed."""
        return RowRun(rows, end=len(self.plan), on_layer=self.loader.place)

    def with_mandatory(self, chosen: Tensor) -> Tensor:
        """Mandatory rows and ``chosen`` candidates, sorted."""
        return torch.cat([self.plan.mandatory, chosen]).sort().values

    def best_candidates(self, scores: Tensor) -> Tensor:
        """The budget's worth of candidates with the highest score ([T] fp32); ties go to the earlier."""
        candidates = self.plan.candidates
        order = scores[candidates].sort(descending=True, stable=True).indices
        return candidates[order[: self.budget]]


class Policy(ABC):
    """Selects which reused tokens a request recomputes. Instances hold no state of a request.

    takes_ratio: whether the ratio means anything to it.
    """

    name: ClassVar[str]
    reuse: ClassVar[Reuse] = "all"
    takes_ratio: ClassVar[bool] = True

    def work(self, plan: Plan, chosen: int, layers: int) -> float:  # noqa: ARG002 (a policy may compute less in some)
        """Rows that a request computes which recomputes ``chosen`` candidates, in the mean over ``layers`` layers."""
        return plan.mandatory.numel() + chosen

    @abstractmethod
    def select(self, request: Request) -> RowRun:
        """The pass that computes the request. It may run passes of its own on the canvas first."""
