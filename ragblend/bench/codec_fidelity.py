"""How close answers on compact KV are to full prefill's, and to those on raw KV."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ragblend.bench.data import read_examples
from ragblend.bench.metrics import Mean, bootstrap_mean
from ragblend.bench.passages import PassagePrompts
from ragblend.bench.quality import QUESTION, fitting
from ragblend.bench.report import METRICS
from ragblend.bench.stores import in_memory
from ragblend.bench.trial import Measurement, Trial
from ragblend.bench.variants import Variant, as_fixed_variants
from ragblend.blend.policies import policy_named
from ragblend.engine import Engine
from ragblend.kernels.layout import Codec
from ragblend.store.codecs import StoreCodec

_FULL = Variant("full", policy_named("full"), 1.0)


@dataclass(frozen=True, slots=True)
class CodecFidelity:
    """One codec's numbers under one policy: means over ``n`` questions, as in ``bench quality``.

    Compression loses nothing, so ``int8`` stands for ``int8+zstd`` too. versus_raw: paired differences, the
    codec's value less raw's, with their intervals at 95%. Full prefill, which reads no chunk KV, has no codec.
    """

    codec: str
    policy: str
    ratio: float
    f1: float
    em: float
    kl_to_full: float
    top1_agreement: float
    gold_nll: float
    n: int
    versus_raw: dict[str, Mean]


def measure_fidelity(
    engine: Engine,
    *,
    data: Path,
    codecs: Sequence[StoreCodec],
    policies: Sequence[str],
    ratio: float,
    limit: int | None = None,
    answer_tokens: int = 32,
    passage_tokens: int = 1024,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[CodecFidelity, ...]:
    """Ask the first ``limit`` questions of ``data`` on chunk KV in each codec's numbers. Each chunk is prefilled once.

    Raw is measured in any case. Arguments and errors as ``bench.quality.run``.
    """
    variants = [variant for variant in as_fixed_variants(policies, ratio) if variant.policy.name != "full"]
    numbers: list[Codec] = list(dict.fromkeys(["raw", *(codec.numbers for codec in codecs)]))
    prompts = PassagePrompts(engine, QUESTION, passage_tokens, answer_tokens)
    questions, _ = fitting([prompts.question(each) for each in read_examples(data, limit)], engine)
    full: list[Measurement] = []
    measured: dict[tuple[Codec, int], list[Measurement]] = {}
    for done, question in enumerate(questions):
        raw = prompts.prefilled(question)
        reference = Trial(engine, question, raw).full(_FULL)
        full.append(reference.measurement)
        for codec in numbers:
            trial = Trial(engine, question, raw if codec == "raw" else in_memory(raw, question.prompt.chunks, codec))
            for index, variant in enumerate(variants):
                measured.setdefault((codec, index), []).append(trial.blended(variant, reference))
        if progress is not None:
            progress(done + 1, len(questions))
    rows = [_row("", full, full)]
    for index in range(len(variants)):
        rows += [_row(codec, measured[codec, index], measured["raw", index]) for codec in numbers]
    return tuple(rows)


def _row(codec: str, measured: Sequence[Measurement], raw: Sequence[Measurement]) -> CodecFidelity:
    def differences(metric: str) -> list[float]:
        return [getattr(one, metric) - getattr(other, metric) for one, other in zip(measured, raw, strict=True)]

    means = {metric: bootstrap_mean([getattr(each, metric) for each in measured]).mean for metric in METRICS}
    return CodecFidelity(
        codec=codec,
        policy=measured[0].policy,
        ratio=measured[0].ratio,
        n=len(measured),
        versus_raw={metric: bootstrap_mean(differences(metric)) for metric in METRICS} if codec else {},
        **means,
    )
