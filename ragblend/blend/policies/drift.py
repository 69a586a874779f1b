"""Selection by what the question attends to, and correction of what is not selected."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ragblend.blend.policies.base import Request
from ragblend.blend.policies.query import QueryAttention
from ragblend.models.rows import RowRun

# How many tokens' worth of trust a chunk's own mean has to earn against the mean of all chunks.
_PRIOR_TOKENS = 5.0
# The share of the sampled tokens' change that their mean must explain, judged on tokens left out, for it to be trusted
# in full; where it explains nothing, nothing is shifted.
_EXPLAINED = 0.1
# Fewer sampled tokens tell too little.
_FEWEST_SAMPLES = 8


class DriftCorrected(QueryAttention):
    """``query``, with ``sampled`` of the budget for tokens at even distances, from which the others are corrected.

    A chunk stands further back in a prompt, and behind other text, than where it was prefilled. What that changes in
    its canonical keys and its values is to a part the same for all of its tokens, and to a smaller one for all chunks.
    So how the sampled tokens change in the mean is added to those that are not recomputed, layer by layer. What the
    prefix cache has placed as one run counts as one chunk.
    """

    name: ClassVar[str] = "drift"

    def __init__(self, first: float = 0.5, last: float = 0.75, sampled: float = 0.1) -> None:
        super().__init__(first, last)
        self.sampled = sampled

    def select(self, request: Request) -> RowRun:
        candidates, count = request.plan.candidates, round(self.sampled * request.budget)
        if count < _FEWEST_SAMPLES or request.budget == candidates.numel():
            return super().select(request)
        best = request.best_candidates(self.scores(request))[: request.budget - count]
        rest = candidates[~torch.isin(candidates, best)]
        evenly = (2 * torch.arange(count, device=rest.device) + 1) * len(rest) // (2 * count)
        run = request.run(request.with_mandatory(torch.cat([best, rest[evenly]])))
        run.on_write = _Correction(request, rest[evenly]).shift
        return run


class _Correction:
    """Shifts the KV of a request's candidates by how that of ``sampled`` ones changes, as a layer is written to.

    The sampled tokens must not be chosen by what they say, or their change is not that of the others. How far each
    one's change can be told from the rest of them (leave-one-out) says how far a layer's mean is trusted.

    sampled: [n] int64, sorted candidates that are recomputed, at least two.
    """

    def __init__(self, request: Request, sampled: Tensor) -> None:
        candidates, rotary = request.plan.candidates, request.adapter.rotary
        first, last = int(candidates[0]), int(candidates[-1])
        positions = torch.arange(first, last + 1, device=candidates.device)
        starts = torch.tensor([p.start for p in request.plan.placements], device=candidates.device)
        chunk = torch.searchsorted(starts, candidates, right=True)
        self._rotary = rotary
        self._sampled = sampled
        self._span = slice(first, last + 1)
        self._chunk = torch.zeros_like(positions)  # 0: no candidate, and not shifted
        self._chunk[candidates - first] = chunk
        self._sampled_chunk = self._chunk[sampled - first]
        self._chunks = len(starts) + 1
        self._angles = rotary.angles(positions)
        self._sampled_angles = rotary.angles(sampled)

    def shift(
        self, layer: int, rows: Tensor, keys: Tensor, values: Tensor, stored_keys: Tensor, stored_values: Tensor
    ) -> None:
        """RowRun's ``on_write``."""
        at = torch.searchsorted(rows, self._sampled)
        key_change = keys[0][:, at].float() - stored_keys[0][:, self._sampled].float()
        self._rotary.rotate_(layer, key_change, self._sampled_angles, inverse=True)
        key_shift = self._spread(key_change, stored_keys.dtype)
        if key_shift is not None:
            self._rotary.rotate_(layer, key_shift, self._angles)
            stored_keys[0][:, self._span].add_(key_shift)
        value_change = values[0][:, at].float() - stored_values[0][:, self._sampled].float()
        value_shift = self._spread(value_change, stored_values.dtype)
        if value_shift is not None:
            stored_values[0][:, self._span].add_(value_shift)

    def _spread(self, changes: Tensor, dtype: torch.dtype) -> Tensor | None:
        """Each position's shift [heads, span, head_dim], from changes [heads, n, head_dim] fp32; None for none."""
        of, heads, width = self._sampled_chunk, changes.shape[0], changes.shape[2]
        sums = changes.new_zeros(heads, self._chunks, width).index_add_(1, of, changes)
        counts = changes.new_zeros(self._chunks).index_add_(0, of, changes.new_ones(len(of)))
        total = changes.sum(dim=1, keepdim=True)

        others = (total - changes) / (len(of) - 1)
        told = (sums[:, of] - changes + _PRIOR_TOKENS * others) / (counts[of] - 1 + _PRIOR_TOKENS)[:, None]
        share = 1 - (changes - told).square().sum() / changes.square().sum().clamp_min(torch.finfo(torch.float32).tiny)
        trust = (share / _EXPLAINED).clamp(0, 1)
        if changes.device.type == "cpu" and trust == 0:  # asking another device would mean waiting for it
            return None
        means = (sums + _PRIOR_TOKENS * total / len(of)) / (counts + _PRIOR_TOKENS)[:, None] * trust
        means[:, 0] = 0
        return means.to(dtype).index_select(1, self._chunk)
