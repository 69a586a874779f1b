"""CacheBlend's selection: the tokens whose KV deviates most from what was stored."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ragblend.blend.plan import Plan
from ragblend.blend.policies.base import Policy, Request
from ragblend.kernels import ops
from ragblend.models.rows import RowRun


class HighDeviation(Policy):
    """HKVD (Yao et al., "CacheBlend", arXiv 2405.16444, section 4): layers 0..check_layer are computed for
    every inexact token; those whose fresh values differ most from the stored ones at check_layer go on.
    """

    name: ClassVar[str] = "hkvd"

    def __init__(self, check_layer: int = 1) -> None:
        self.check_layer = check_layer

    def work(self, plan: Plan, chosen: int, layers: int) -> float:
        checked = min(self.check_layer + 1, layers) / layers
        return plan.mandatory.numel() + chosen + checked * (plan.candidates.numel() - chosen)

    def select(self, request: Request) -> RowRun:
        run = request.run(request.with_mandatory(request.plan.candidates))
        check = min(self.check_layer, request.adapter.layer_count - 1)
        scores = torch.zeros(len(request.plan), device=request.adapter.device)

        def compare(layer: int, rows: Tensor, _: Tensor, values: Tensor, __: Tensor, stored: Tensor) -> None:
            if layer == check:
                scores[rows] = ops.deviation(values[0], stored[0], rows, impl=request.adapter.kernels)

        run.on_write = compare
        run.narrow_before = check + 1
        run.narrow = lambda: request.with_mandatory(request.best_candidates(scores))
        return run
