"""How many of the example handbook's single-fact questions a library answers right, by policy and order of chunks.

    python tests/benchmarks/handbook_answers.py [--model M] [--policies query@0.15,none] [--limit 36] [--show]
    python tests/benchmarks/handbook_answers.py --orders best-last,best-first,document

A library is made of the handbook, and the prompts are those of ``ragblend ask``. An answer counts as right if it
contains the words of an expected one, one after the other; *equal* counts those that are full prefill's word for word,
*KL* is the mean divergence from full prefill along its own answer, with a 95% bootstrap interval. Full prefill has the
same chunks in the same order.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from typing import cast, get_args

from handbook import indexed_handbook, question_over, single_fact_questions

from ragblend import Engine
from ragblend.bench.metrics import bootstrap_mean, contains_answer
from ragblend.bench.trial import Measurement, Trial
from ragblend.bench.variants import Variant, as_fixed_variants
from ragblend.blend.policies import policy_named
from ragblend.config import BlendSettings, ChunkOrder
from ragblend.library.order import in_order

ANSWER_TOKENS = 32
FOUND = 6
FULL = Variant("full", policy_named("full"), 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--policies", default="query@0.15")
    parser.add_argument("--orders", default=BlendSettings().order, help=f"of {', '.join(get_args(ChunkOrder))}")
    parser.add_argument("--limit", type=int, help="the first questions only")
    parser.add_argument("--show", action="store_true", help="print every answer")
    arguments = parser.parse_args()
    orders = [BlendSettings(order=cast("ChunkOrder", order)).order for order in arguments.orders.split(",")]
    variants = as_fixed_variants(arguments.policies.split(","), 0.15)
    labels = [FULL.label, *(f"{v.label} at {v.ratio:g}" if v.policy.takes_ratio else v.label for v in variants)]
    engine = Engine(arguments.model)
    measured: dict[tuple[str, str], list[tuple[bool, bool, Measurement]]] = defaultdict(list)
    with indexed_handbook(engine) as library:
        for line in single_fact_questions(arguments.limit):
            hits = library.search(line["question"], FOUND)
            if arguments.show:
                print(line["question"])
            for order in orders:
                chunks = [hit.segment for hit in in_order(hits, order)]
                trial = Trial(engine, question_over(engine, line, chunks, ANSWER_TOKENS), library.store)
                full = trial.full(FULL)
                answered = [full.measurement, *(trial.blended(variant, full) for variant in variants)]
                for label, each in zip(labels, answered, strict=True):
                    right, equal = contains_answer(each.answer, line["answers"]), each.answer == full.measurement.answer
                    measured[order, label].append((right, equal, each))
                    if arguments.show:
                        print(f"  {order}, {label}: {each.answer}")
    for (order, label), rows in measured.items():
        divergence = bootstrap_mean([each.kl_to_full for _, _, each in rows])
        print(
            f"{order:10}  {label:14}  {sum(right for right, _, _ in rows)} of {len(rows)} right, "
            f"{sum(equal for _, equal, _ in rows)} equal, "
            f"KL {divergence.mean:.4f} ({divergence.low:.4f} to {divergence.high:.4f})"
        )


if __name__ == "__main__":
    main()
