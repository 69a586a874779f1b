"""Selection by what the question attends to."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ragblend.blend.policies.base import Policy, Request
from ragblend.kernels import ops
from ragblend.kernels.layout import Attention
from ragblend.models.rows import RowRun


class QueryAttention(Policy):
    """The tokens that receive most of the suffix's attention (as ProphetKV, arXiv 2602.02579).

    A first pass runs only the mandatory rows over the placed chunks, and adds up the attention that
    each candidate receives from the suffix in the layers between ``first`` and ``last`` (shares of
    the model's depth). It ends at ``last``: the layers above are not needed for scoring.
    """

    name: ClassVar[str] = "query"

    def __init__(self, first: float = 0.5, last: float = 0.75) -> None:
        self.first = first
        self.last = last

    def select(self, request: Request) -> RowRun:
        if request.budget == 0:
            return request.run(request.plan.mandatory)
        scores = self.scores(request)
        return request.run(request.with_mandatory(request.best_candidates(scores)))

    def scores(self, request: Request) -> Tensor:
        """Attention received by each position, [T] fp32, summed over the scored layers."""
        layers = request.adapter.layer_count
        begin, end = int(self.first * layers), max(1, round(self.last * layers))
        scores = torch.zeros(len(request.plan), device=request.adapter.device)
        suffix = len(request.plan) - request.plan.suffix_start

        def add(layer: int, rows: Tensor, query: Tensor, keys: Tensor, attention: Attention) -> None:
            if begin <= layer < end:
                received = ops.attention_received(
                    query[:, :, -suffix:], keys, rows[-suffix:], attention, impl=request.adapter.kernels
                )
                scores[: received.shape[0]] += received

        run = request.run(request.plan.mandatory)
        run.on_attend = add
        run.stop_before = end
        request.adapter.forward_rows(request.canvas, request.plan.token_ids, run)
        return scores
