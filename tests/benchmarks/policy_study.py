"""Which selection comes closest to full prefill? Variants of `query` beside the built-in policies.

    python tests/benchmarks/policy_study.py --data questions.jsonl --limit 8 [--model M] [--ratio 0.1]
        [--no-preamble]

Prints, for each variant, the mean KL to full prefill along full prefill's own greedy answer and
along the right answer. What won is the default of `ragblend.blend.policies.query`; what lost stays
here, so that it can be tried again on another model.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
from collections import defaultdict
from pathlib import Path

import torch
from torch import Tensor

from ragblend.bench import fidelity
from ragblend.bench.data import read_examples
from ragblend.bench.fidelity import Continuations
from ragblend.bench.passages import PassagePrompts
from ragblend.bench.quality import QUESTION
from ragblend.bench.variants import Variant
from ragblend.blend.blender import blend
from ragblend.blend.policies import policy_named
from ragblend.blend.policies.base import Policy, Request
from ragblend.blend.policies.hkvd import HighDeviation
from ragblend.blend.policies.query import QueryAttention
from ragblend.engine import Engine
from ragblend.kernels import ops, reference
from ragblend.kernels.layout import Attention
from ragblend.models.rows import RowRun
from ragblend.prompt import PREAMBLE

ANSWER_TOKENS = 24
LATE = (2 / 3, 1.0)


class LeadingMix(QueryAttention):
    """30% of the budget to the first tokens of every chunk, the rest to the question's attention."""

    def select(self, request: Request) -> RowRun:
        scores = self.scores(request)
        inexact = [placement for placement in request.plan.placements if not placement.exact]
        for placement in inexact:
            leading = max(1, int(0.3 * request.budget) // len(inexact))
            scores[placement.start : placement.start + leading] += 1e6
        return request.run(request.with_mandatory(request.best_candidates(scores)))


class TwoRounds(QueryAttention):
    """Half the budget by a first scoring, the rest by a second one over what the first recomputed."""

    def select(self, request: Request) -> RowRun:
        half = dataclasses.replace(request, ratio=request.ratio / 2)
        first = half.best_candidates(self.scores(request))
        begin, end = int(self.first * request.adapter.layer_count), round(self.last * request.adapter.layer_count)
        suffix = len(request.plan) - request.plan.suffix_start
        scores = torch.zeros(len(request.plan))

        def add(layer: int, rows: Tensor, query: Tensor, keys: Tensor, attention: Attention) -> None:
            if begin <= layer < end:
                scores.add_(ops.attention_received(query[:, :, -suffix:], keys, rows[-suffix:], attention))

        run = request.run(request.with_mandatory(first))
        run.on_attend, run.stop_before = add, end
        request.adapter.forward_rows(request.canvas, request.plan.token_ids, run)
        scores[first] += 1e6
        return request.run(request.with_mandatory(request.best_candidates(scores)))


class Smoothed(QueryAttention):
    """Scores averaged over five neighbours, so that spans are taken."""

    def scores(self, request: Request) -> Tensor:
        return torch.nn.functional.avg_pool1d(super().scores(request)[None, None], 5, 1, 2)[0, 0]


class Gradual(QueryAttention):
    """A third more tokens in the lower half of the layers, a third fewer in the upper (CacheBlend's filtering)."""

    def select(self, request: Request) -> RowRun:
        scores = self.scores(request)
        wide = dataclasses.replace(request, ratio=min(1.0, request.ratio * 4 / 3))
        narrow = dataclasses.replace(request, ratio=request.ratio * 2 / 3)
        run = request.run(request.with_mandatory(wide.best_candidates(scores)))
        run.narrow_before = request.adapter.layer_count // 2
        run.narrow = lambda: request.with_mandatory(narrow.best_candidates(scores))
        return run


class StrongestHead(QueryAttention):
    """The head that attends most to a token counts, not the mean of all heads."""

    def scores(self, request: Request) -> Tensor:
        begin = int(self.first * request.adapter.layer_count)
        suffix = len(request.plan) - request.plan.suffix_start
        scores = torch.zeros(len(request.plan))

        def add(layer: int, rows: Tensor, query: Tensor, keys: Tensor, attention: Attention) -> None:
            if layer >= begin:
                weights = reference.probabilities(query[:, :, -suffix:], keys, rows[-suffix:], attention)
                scores.add_(weights[0].mean(dim=1).amax(dim=0))

        run = request.run(request.plan.mandatory)
        run.on_attend = add
        request.adapter.forward_rows(request.canvas, request.plan.token_ids, run)
        return scores


class ScoreTimesDeviation(Policy):
    """The question's attention times the root of the deviation at layer 1."""

    name = "score-times-deviation"

    def select(self, request: Request) -> RowRun:
        scores = QueryAttention(*LATE).scores(request)
        run = HighDeviation().select(request)
        deviations = torch.zeros(len(request.plan))

        def compare(layer: int, rows: Tensor, _: Tensor, values: Tensor, __: Tensor, stored: Tensor) -> None:
            if layer == 1:
                deviations[rows] = ops.deviation(values[0], stored[0].index_select(1, rows))

        run.on_write = compare
        run.narrow = lambda: request.with_mandatory(request.best_candidates(scores * deviations.sqrt()))
        return run


def variants(ratio: float) -> list[Variant]:
    """The built-in policies, and `query` in other forms, all at ``ratio`` (and `hkvd` at 0.15)."""
    queries = {
        "query, all layers": QueryAttention(0.0, 1.0),
        "query, middle third": QueryAttention(1 / 3, 2 / 3),
        "query, last third": QueryAttention(*LATE),
        "query, strongest head of the upper two thirds": StrongestHead(1 / 3, 1.0),
        "query, smoothed over five tokens": Smoothed(*LATE),
        "query, two rounds": TwoRounds(*LATE),
        "query, fewer tokens in upper layers": Gradual(*LATE),
        "query and leading tokens": LeadingMix(*LATE),
        "query times deviation": ScoreTimesDeviation(),
    }
    built_in = [Variant(name, policy_named(name), ratio) for name in ("none", "leading", "hkvd")]
    return [
        *built_in,
        Variant("hkvd", policy_named("hkvd"), 0.15),
        *(Variant(label, policy, ratio) for label, policy in queries.items()),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=8)
    parser.add_argument("--model")
    parser.add_argument("--ratio", type=float, default=0.1)
    parser.add_argument("--no-preamble", action="store_true", help="prefill chunks right behind the prompt's beginning")
    arguments = parser.parse_args()
    engine = Engine(arguments.model, preamble="" if arguments.no_preamble else PREAMBLE)
    prompts = PassagePrompts(engine, QUESTION, 1024, ANSWER_TOKENS)
    found: dict[tuple[str, float], list[tuple[float, float]]] = defaultdict(list)
    full = Variant("full", policy_named("full"), 1.0)
    for example in read_examples(arguments.data, arguments.limit):
        question = prompts.question(example)
        store = prompts.prefilled(question)

        def continued(variant: Variant, question=question, store=store) -> Continuations:
            blended = blend(
                engine.adapter,
                engine.anchor,
                question.prompt,
                policy=variant.policy,
                ratio=variant.ratio,
                store=store,
                room=question.room,
            )
            return Continuations(engine.adapter, blended, question.prompt.token_ids)

        continuations = continued(full)
        answers = (continuations.greedy(ANSWER_TOKENS), question.gold_ids)
        expected = [continuations.step_logits(ids) for ids in answers]
        for variant in variants(arguments.ratio):
            continuations = continued(variant)
            steps = [continuations.step_logits(ids) for ids in answers]
            own, gold = (fidelity.mean_kl(full, step) for full, step in zip(expected, steps, strict=True))
            found[variant.label, variant.ratio].append((own, gold))
    print(f"{'variant':48} ratio  KL, own answer  KL, right answer  questions")
    for (label, ratio), values in found.items():
        own, gold = (statistics.fmean(value[index] for value in values) for index in (0, 1))
        print(f"{label:48} {ratio:5.2f}  {own:14.4f}  {gold:16.4f}  {len(values):9}")


if __name__ == "__main__":
    main()
