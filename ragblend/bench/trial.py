"""One question under one policy: a single blend is asked for everything that is measured."""

from __future__ import annotations

import time
from dataclasses import dataclass

from torch import Tensor

from ragblend.bench import fidelity
from ragblend.bench.baseline import transformers_attention, transformers_prefill, transformers_step_logits
from ragblend.bench.fidelity import Continuations
from ragblend.bench.metrics import exact_match, f1
from ragblend.bench.passages import Question
from ragblend.bench.variants import Variant
from ragblend.blend.blender import blend
from ragblend.config import fixed_ratio
from ragblend.engine import Engine
from ragblend.store.base import KVStore


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one policy did on one question; NLL and KL in nats per token. The bench's rows are its means."""

    id: str
    policy: str
    ratio: float
    answer: str
    f1: float
    em: float
    kl_to_full: float
    top1_agreement: float
    gold_nll: float
    ttft_s: float
    prompt_tokens: int
    computed_tokens: int


@dataclass(frozen=True)
class Reference:
    """Full prefill's greedy answer, and the step logits [n, vocabulary] along it."""

    answer_ids: tuple[int, ...]
    logits: Tensor
    measurement: Measurement


@dataclass(frozen=True, slots=True)
class TransformersRun:
    """transformers' own full prefill of a question: seconds to the first token, and KL of ours to it."""

    seconds: float
    kl: float
    attention: str


@dataclass(frozen=True)
class Trial:
    """A question with its chunks' KV in ``store``."""

    engine: Engine
    question: Question
    store: KVStore

    def full(self, variant: Variant) -> Reference:
        """Full prefill, which the other policies are compared with."""
        seconds, computed, continuations = self._blend(variant)
        answer_ids = continuations.greedy(self.question.answer_tokens)
        logits = continuations.step_logits(answer_ids)
        measurement = self._measurement(variant, seconds, computed, continuations, answer_ids, logits, logits)
        return Reference(answer_ids, logits, measurement)

    def blended(self, variant: Variant, reference: Reference) -> Measurement:
        """One policy, along full prefill's answer and on its own."""
        seconds, computed, continuations = self._blend(variant)
        logits = continuations.step_logits(reference.answer_ids)
        answer_ids = continuations.greedy_along(reference.answer_ids, logits, self.question.answer_tokens)
        return self._measurement(variant, seconds, computed, continuations, answer_ids, reference.logits, logits)

    def transformers(self, reference: Reference) -> TransformersRun:
        """The same prompt by transformers alone."""
        adapter = self.engine.adapter
        with transformers_attention(adapter) as attention:
            prefill = transformers_prefill(adapter, self.question.prompt.token_ids)
            logits = transformers_step_logits(adapter, prefill, reference.answer_ids)
        return TransformersRun(prefill.seconds, fidelity.mean_kl(logits, reference.logits), attention)

    def _blend(self, variant: Variant) -> tuple[float, int, Continuations]:
        """Seconds to the first token, rows computed, and the canvas ready to be continued."""
        began = time.perf_counter()
        blended = blend(
            self.engine.adapter,
            self.engine.anchor,
            self.question.prompt,
            policy=variant.policy,
            ratio=fixed_ratio(variant.ratio),
            store=self.store,
            room=self.question.room,
        )
        int(blended.logits.argmax())  # the first token; on a GPU this waits for it
        seconds = time.perf_counter() - began
        return seconds, blended.computed, Continuations(self.engine.adapter, blended, self.question.prompt.token_ids)

    def _measurement(
        self,
        variant: Variant,
        seconds: float,
        computed: int,
        continuations: Continuations,
        answer_ids: tuple[int, ...],
        reference_logits: Tensor,
        logits: Tensor,
    ) -> Measurement:
        example, gold_ids = self.question.example, self.question.gold_ids
        answer = str(self.engine.tokenizer.decode(answer_ids, skip_special_tokens=True)).strip()
        return Measurement(
            id=example.id,
            policy=variant.label,
            ratio=fixed_ratio(variant.ratio),
            answer=answer,
            f1=f1(answer, example.answers),
            em=exact_match(answer, example.answers),
            kl_to_full=fidelity.mean_kl(reference_logits, logits),
            top1_agreement=fidelity.top1_agreement(reference_logits, logits),
            gold_nll=fidelity.mean_nll(gold_ids, continuations.step_logits(gold_ids)),
            ttft_s=seconds,
            prompt_tokens=len(self.question.prompt),
            computed_tokens=computed,
        )
