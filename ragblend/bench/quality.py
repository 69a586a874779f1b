"""``ragblend bench quality``: how good answers are by policy, and how close to full prefill."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from ragblend.bench.baseline import judge
from ragblend.bench.data import Example, read_examples
from ragblend.bench.machine import describe_machine
from ragblend.bench.passages import PassagePrompts, Question
from ragblend.bench.report import QualityReport, QualitySettings, make_row
from ragblend.bench.trial import Measurement, TransformersRun, Trial
from ragblend.bench.variants import Variant, as_fixed_variants
from ragblend.blend.policies import policy_named
from ragblend.config import Ratio, require
from ragblend.engine import Engine
from ragblend.errors import ContextOverflowError

# Right answers are a few words; of a model that answers in sentences F1 would measure only that.
QUESTION = (
    "Answer the question using only the documents above. Give only the answer itself, in at most five words, "
    "without repeating the question.\nQuestion: {question}"
)


def run(
    engine: Engine,
    *,
    data: Path,
    policies: Sequence[str | Variant],
    ratio: Ratio = 0.15,
    limit: int | None = None,
    answer_tokens: int = 32,
    passage_tokens: int = 1024,
    baseline_questions: int = 5,
    question: str = QUESTION,
    progress: Callable[[int, int], None] | None = None,
) -> QualityReport:
    """Measure policies (names, ``name@ratio`` or variants) on the first ``limit`` examples of ``data``.

    Full prefill always runs and gives the first row. On the first ``baseline_questions`` questions
    transformers' own full prefill runs too. Each passage is a chunk, or several of at most
    ``passage_tokens``. Decoding is greedy, so runs repeat. An example that does not fit the model's
    context is left out and named in the settings. question: the wording, with ``{question}``.
    progress: called with the questions done and their total.

    Raises PathNotFoundError, ConfigError (data, policies, settings), ContextOverflowError (nothing fits).
    """
    require(baseline_questions >= 1, f"baseline questions must be at least 1, got {baseline_questions}")
    full = Variant("full", policy_named("full"), 1.0)
    variants = [variant for variant in as_fixed_variants(policies, ratio) if variant.policy.name != "full"]
    prompts = PassagePrompts(engine, question, passage_tokens, answer_tokens)
    questions, too_long = fitting([prompts.question(each) for each in read_examples(data, limit)], engine)
    full_measured: list[Measurement] = []
    measured: list[list[Measurement]] = [[] for _ in variants]
    theirs: list[TransformersRun] = []
    for done, each in enumerate(questions):
        trial = Trial(engine, each, prompts.prefilled(each))
        reference = trial.full(full)
        full_measured.append(reference.measurement)
        for collected, variant in zip(measured, variants, strict=True):
            collected.append(trial.blended(variant, reference))
        if done < baseline_questions:
            theirs.append(trial.transformers(reference))
        if progress is not None:
            progress(done + 1, len(questions))
    compared = full_measured[: len(theirs)]
    baseline = judge(
        [each.prompt_tokens for each in compared],
        [each.ttft_s for each in compared],
        [each.seconds for each in theirs],
        theirs[0].attention,
    )
    return QualityReport(
        rows=tuple(make_row(collected, full_measured, baseline) for collected in (full_measured, *measured)),
        baseline=baseline,
        rounding_kl=statistics.fmean(each.kl for each in theirs),
        settings=QualitySettings(
            data=data.name,
            question=question,
            answer_tokens=answer_tokens,
            passage_tokens=passage_tokens,
            prompt_tokens=statistics.fmean(len(each.prompt) for each in questions),
            too_long=tuple(example.id for example in too_long),
        ),
        machine=describe_machine(engine),
        measurements=(*full_measured, *(each for collected in measured for each in collected)),
    )


def fitting(questions: Sequence[Question], engine: Engine) -> tuple[list[Question], list[Example]]:
    """The questions that fit the model's context, and the examples of the others."""
    fitting: list[Question] = []
    too_long: list[Question] = []
    for each in questions:
        fits = len(each.prompt) + each.room <= engine.context_length
        (fitting if fits else too_long).append(each)
    if not fitting:
        shortest = min(too_long, key=lambda each: len(each.prompt) + each.room)
        raise ContextOverflowError(len(shortest.prompt), shortest.room, engine.context_length)
    return fitting, [each.example for each in too_long]
