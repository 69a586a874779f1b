"""Policies that look at nothing but the plan."""

from __future__ import annotations

from typing import ClassVar

import torch

from ragblend.blend.plan import Reuse
from ragblend.blend.policies.base import Policy, Request
from ragblend.models.rows import RowRun


class Full(Policy):
    """Compute everything: the answer that the others are measured against."""

    name: ClassVar[str] = "full"
    reuse: ClassVar[Reuse] = "nothing"
    takes_ratio: ClassVar[bool] = False

    def select(self, request: Request) -> RowRun:
        return request.run(request.plan.mandatory)


class Prefix(Policy):
    """Reuse only what is exact: what the prefix cache has, else the anchor and a chunk right behind all of it."""

    name: ClassVar[str] = "prefix"
    reuse: ClassVar[Reuse] = "exact"
    takes_ratio: ClassVar[bool] = False

    def select(self, request: Request) -> RowRun:
        return request.run(request.plan.mandatory)


class NoRecompute(Policy):
    """Reuse every stored chunk as it is."""

    name: ClassVar[str] = "none"
    takes_ratio: ClassVar[bool] = False

    def select(self, request: Request) -> RowRun:
        return request.run(request.plan.mandatory)


class Leading(Policy):
    """The first tokens of every inexact chunk (LegoLink: Hu et al., "EPIC", arXiv 2410.15332)."""

    name: ClassVar[str] = "leading"

    def select(self, request: Request) -> RowRun:
        scores = torch.zeros(len(request.plan), device=request.adapter.device)
        for placement in request.plan.placements:
            count = placement.stop - placement.start
            scores[placement.start : placement.stop] = -torch.arange(count, device=scores.device).float()
        return request.run(request.with_mandatory(request.best_candidates(scores)))
