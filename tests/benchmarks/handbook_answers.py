"""How many of the example handbook's single-fact questions a library answers right, by policy.

    python tests/benchmarks/handbook_answers.py [--model M] [--policies query@0.15,none] [--show]

A library is made of the handbook and asked as ``ragblend ask`` does. An answer counts as right if it contains the
words of an expected one, one after the other; ``equal`` counts those that are full prefill's word for word.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from handbook import indexed_handbook, single_fact_questions

from ragblend import Engine
from ragblend.bench.metrics import normalised_words
from ragblend.bench.variants import as_fixed_variants
from ragblend.config import GenerationSettings

SETTINGS = GenerationSettings(max_tokens=32)


def is_right(answer: str, expected: Sequence[str]) -> bool:
    said = f" {' '.join(normalised_words(answer))} "
    return any(f" {' '.join(normalised_words(each))} " in said for each in expected)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--policies", default="query@0.15")
    parser.add_argument("--show", action="store_true", help="print every answer")
    arguments = parser.parse_args()
    variants = as_fixed_variants(["full", *arguments.policies.split(",")], 0.15)
    right = dict.fromkeys(variants, 0)
    equal = dict(right)
    questions = single_fact_questions()
    with indexed_handbook(Engine(arguments.model)) as library:
        for line in questions:
            texts = {}
            for variant in variants:
                answer = library.ask(
                    line["question"], policy=variant.policy.name, ratio=variant.ratio, generation=SETTINGS
                )
                texts[variant] = answer.text.strip()
                right[variant] += is_right(answer.text, line["answers"])
                equal[variant] += texts[variant] == texts[variants[0]]
            if arguments.show:
                print(line["question"], *(f"  {variant.label}: {text}" for variant, text in texts.items()), sep="\n")
    for variant in variants:
        print(
            f"{variant.label:20} {right[variant]} of {len(questions)} right, {equal[variant]} equal to full prefill's"
        )


if __name__ == "__main__":
    main()
