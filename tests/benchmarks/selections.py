"""Ways to select what is recomputed, beside the built-in policies: what ``policy_study.py`` compares."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from ragblend.bench.variants import Variant
from ragblend.blend.policies import policy_named
from ragblend.blend.policies.base import Policy, Request
from ragblend.blend.policies.hkvd import HighDeviation
from ragblend.blend.policies.query import QueryAttention
from ragblend.kernels import ops, reference
from ragblend.kernels.layout import Attention
from ragblend.models.rows import RowRun

# A score that no attention reaches: what has it is taken first.
FIRST = 1e6


class Deviation(HighDeviation):
    """CacheBlend's selection by keys, values or both, at one layer; ``gradual`` narrows in two steps.

    gradual: half as many again as the ratio asks for are kept at ``check_layer``, and the ratio's share of them by
    what deviates at the layer behind (CacheBlend, section 5, "gradual filtering").
    """

    def __init__(self, keys: bool, values: bool, check_layer: int = 1, gradual: bool = False) -> None:
        super().__init__(check_layer)
        self.keys, self.values, self.gradual = keys, values, gradual

    def select(self, request: Request) -> RowRun:
        run = request.run(request.with_mandatory(request.plan.candidates))
        scores = torch.zeros(len(request.plan))
        last = self.check_layer + 1 if self.gradual else self.check_layer

        def compare(
            layer: int, rows: Tensor, keys: Tensor, values: Tensor, stored_keys: Tensor, stored: Tensor
        ) -> None:
            if self.check_layer <= layer <= last:
                scores[rows] = 0.0
                if self.keys:
                    scores[rows] += ops.deviation(keys[0], stored_keys[0], rows)
                if self.values:
                    scores[rows] += ops.deviation(values[0], stored[0], rows)

        def narrow() -> Tensor:
            if run.narrow_before == self.check_layer + 1 and self.gradual:
                run.narrow_before = self.check_layer + 2
                wide = dataclasses.replace(request, ratio=min(1.0, request.ratio * 1.5))
                kept = wide.best_candidates(scores)
                forgotten = torch.ones(len(request.plan), dtype=torch.bool)
                forgotten[kept] = False
                scores[forgotten] = -1.0
                return request.with_mandatory(kept)
            return request.with_mandatory(request.best_candidates(scores))

        run.on_write = compare
        run.narrow_before = self.check_layer + 1
        run.narrow = narrow
        return run


class Received(QueryAttention):
    """Scores as ``received`` adds them up with ``options``."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def scores(self, request: Request) -> Tensor:
        return received(request, request.plan.mandatory, **self.options)


class LeadingMix(QueryAttention):
    """30% of the budget to the first tokens of every chunk, the rest to the question's attention."""

    def select(self, request: Request) -> RowRun:
        scores = self.scores(request)
        inexact = [placement for placement in request.plan.placements if not placement.exact]
        for placement in inexact:
            leading = max(1, int(0.3 * request.budget) // len(inexact))
            scores[placement.start : placement.start + leading] += FIRST
        return request.run(request.with_mandatory(request.best_candidates(scores)))


class TwoRounds(QueryAttention):
    """Half the budget by a first scoring, the rest by a second one over what the first recomputed."""

    def select(self, request: Request) -> RowRun:
        half = dataclasses.replace(request, ratio=request.ratio / 2)
        first = half.best_candidates(self.scores(request))
        scores = received(request, request.with_mandatory(first))
        scores[first] += FIRST
        return request.run(request.with_mandatory(request.best_candidates(scores)))


class Spans(QueryAttention):
    """Scores averaged over ``width`` neighbours, so that spans are taken."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def scores(self, request: Request) -> Tensor:
        scores = super().scores(request)[None, None]
        return torch.nn.functional.avg_pool1d(scores, self.width, 1, self.width // 2)[0, 0]


class LayerBudgets(QueryAttention):
    """A third more tokens in the lower half of the layers, a third fewer in the upper."""

    def select(self, request: Request) -> RowRun:
        scores = self.scores(request)
        wide = dataclasses.replace(request, ratio=min(1.0, request.ratio * 4 / 3))
        narrow = dataclasses.replace(request, ratio=request.ratio * 2 / 3)
        run = request.run(request.with_mandatory(wide.best_candidates(scores)))
        run.narrow_before = request.adapter.layer_count // 2
        run.narrow = lambda: request.with_mandatory(narrow.best_candidates(scores))
        return run


class Covering(QueryAttention):
    """The fewest tokens that receive ``share`` of what the question attends to, instead of a ratio."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def select(self, request: Request) -> RowRun:
        scores = self.scores(request)
        ranked = scores[request.plan.candidates].sort(descending=True).values
        enough = int((ranked.cumsum(0) < self.share * ranked.sum()).sum()) + 1
        wanted = dataclasses.replace(request, ratio=min(1.0, enough / max(1, len(ranked))))
        return request.run(wanted.with_mandatory(wanted.best_candidates(scores)))


class BestChunks(QueryAttention):
    """The question's attention times what its whole chunk receives, so that few chunks take most of the budget."""

    def scores(self, request: Request) -> Tensor:
        scores = super().scores(request)
        for placement in request.plan.placements:
            inside = slice(placement.start, placement.stop)
            scores[inside] = scores[inside] * scores[inside].sum()
        return scores


class ScoreTimesValues(QueryAttention):
    """The question's attention times the size of a token's values, which is what attention adds up."""

    def scores(self, request: Request) -> Tensor:
        scores = super().scores(request)
        sizes = torch.zeros_like(scores)
        layers = request.adapter.layer_count
        for layer in range(int(self.first * layers), round(self.last * layers)):
            sizes += request.canvas.values(layer)[0, :, : len(scores)].float().norm(dim=-1).mean(dim=0)
        return scores * sizes


class ScoreTimesDeviation(Policy):
    """The question's attention times the root of the deviation at layer 1."""

    name = "score-times-deviation"

    def select(self, request: Request) -> RowRun:
        scores = QueryAttention().scores(request)
        run = HighDeviation().select(request)
        deviations = torch.zeros(len(request.plan))

        def compare(layer: int, rows: Tensor, _: Tensor, values: Tensor, __: Tensor, stored: Tensor) -> None:
            if layer == 1:
                deviations[rows] = ops.deviation(values[0], stored[0], rows)

        run.on_write = compare
        run.narrow = lambda: request.with_mandatory(request.best_candidates(scores * deviations.sqrt()))
        return run


class Sensitive(Policy):
    """What changes most with what a chunk stands behind, as measured at indexing; needs no pass of its own.

    sensitivity: of each token of a chunk, by the chunk's key. attended: multiply with the question's attention.
    """

    name = "sensitive"

    def __init__(self, sensitivity: dict[str, Tensor], attended: bool = False) -> None:
        self.sensitivity = sensitivity
        self.attended = attended

    def select(self, request: Request) -> RowRun:
        scores = torch.zeros(len(request.plan))
        for placement in request.plan.placements:
            if placement.key in self.sensitivity:
                scores[placement.start : placement.stop] = self.sensitivity[placement.key]
        if self.attended:
            scores = scores.sqrt() * QueryAttention().scores(request)
        return request.run(request.with_mandatory(request.best_candidates(scores)))


class FromStoredHidden(QueryAttention):
    """Recomputed tokens begin at a layer in the middle, with the hidden state that they had when they were prefilled.

    Computed here as if they began there: in the layers below they are given what they had, so their KV stays as it is.
    hidden: each token's inputs of the first layers, by the chunk's key. begin: the layer, as a share of the depth.
    """

    def __init__(self, hidden: dict[str, list[Tensor]], begin: float) -> None:
        super().__init__()
        self.hidden, self.begin = hidden, begin

    def select(self, request: Request) -> RowRun:
        run = super().select(request)
        begin = round(self.begin * request.adapter.layer_count)
        given = []
        for placement in request.plan.placements:
            if placement.key in self.hidden:
                inside = ((run.rows >= placement.start) & (run.rows < placement.stop)).nonzero()[:, 0]
                given.append((inside, run.rows[inside] - placement.start, self.hidden[placement.key]))

        def replace(layer: int, hidden: Tensor) -> Tensor:
            if layer <= begin:
                hidden = hidden.clone()
                for inside, own, stored in given:
                    hidden[0, inside] = stored[layer][own]
            return hidden

        run.on_hidden = replace
        return run


def received(request: Request, rows: Tensor, *, first=0.5, last=0.75, step=1, measure=ops.attention_received) -> Tensor:
    """What each position receives from the suffix in a pass over ``rows``, [T] fp32, summed over layers.

    first, last: where the layers begin and end that count, as shares of the depth. step: of so many one counts.
    measure: of one layer, from its suffix queries, keys, rows and attention.
    """
    layers = request.adapter.layer_count
    begin, end = int(first * layers), round(last * layers)  # as QueryAttention rounds
    suffix = len(request.plan) - request.plan.suffix_start
    scores = torch.zeros(len(request.plan))

    def add(layer: int, rows: Tensor, query: Tensor, keys: Tensor, attention: Attention) -> None:
        if begin <= layer < end and (layer - begin) % step == 0:
            scores.add_(measure(query[:, :, -suffix:], keys, rows[-suffix:], attention))

    run = request.run(rows)
    run.on_attend = add
    request.adapter.forward_rows(request.canvas, request.plan.token_ids, run)
    return scores


def _by_strongest_head(query: Tensor, keys: Tensor, rows: Tensor, attention: Attention) -> Tensor:
    return reference.probabilities(query, keys, rows, attention)[0].mean(dim=1).amax(dim=0)


def _by_strongest_token(query: Tensor, keys: Tensor, rows: Tensor, attention: Attention) -> Tensor:
    return reference.probabilities(query, keys, rows, attention)[0].mean(dim=0).amax(dim=0)


def _by_last_token(query: Tensor, keys: Tensor, rows: Tensor, attention: Attention) -> Tensor:
    return ops.attention_received(query[:, :, -1:], keys, rows[-1:], attention)


def selections(ratio: float, sensitivity: dict[str, Tensor], hidden: dict[str, list[Tensor]]) -> list[Variant]:
    """Everything that is compared at ``ratio``. sensitivity, hidden: filled with each question's before it is asked."""
    policies: dict[str, Policy] = {
        **{name: policy_named(name) for name in ("none", "leading", "hkvd", "query", "drift")},
        "hkvd by keys": Deviation(keys=True, values=False),
        "hkvd by both": Deviation(keys=True, values=True),
        "hkvd at layer 2": Deviation(keys=False, values=True, check_layer=2),
        "hkvd, gradual": Deviation(keys=False, values=True, gradual=True),
        "query, all layers": QueryAttention(0.0, 1.0),
        "query, middle third": QueryAttention(1 / 3, 2 / 3),
        "query, last third": QueryAttention(2 / 3, 1.0),
        "query, upper half": QueryAttention(0.5, 1.0),
        "query, every third of its layers": Received(step=3),
        "query, strongest head": Received(first=1 / 3, last=1.0, measure=_by_strongest_head),
        "query, strongest token": Received(measure=_by_strongest_token),
        "query, last token": Received(measure=_by_last_token),
        "query, best chunks first": BestChunks(),
        "query times values": ScoreTimesValues(),
        "query, spans of 5": Spans(5),
        "query, spans of 15": Spans(15),
        "query, two rounds": TwoRounds(),
        "query, fewer tokens in upper layers": LayerBudgets(),
        "query and leading tokens": LeadingMix(),
        "query times deviation": ScoreTimesDeviation(),
        "sensitivity": Sensitive(sensitivity),
        "query times sensitivity": Sensitive(sensitivity, attended=True),
        **{f"query, from {share:.2g} of the depth": FromStoredHidden(hidden, share) for share in (0.2, 1 / 3, 0.5)},
        "query, 60% of the attention": Covering(0.6),
        "query, 80% of the attention": Covering(0.8),
        "query, 90% of the attention": Covering(0.9),
    }
    return [Variant(label, policy, ratio) for label, policy in policies.items()]
