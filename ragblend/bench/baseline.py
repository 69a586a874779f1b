"""transformers' own full prefill: with our own full path, what every speed-up is measured against."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import DynamicCache

from ragblend.models.adapter import DecoderAdapter
from ragblend.models.attention import ATTENTION_NAME

_ATTENTION = "sdpa"
_WITHOUT_SDPA = "eager"  # for models with attention sinks, which SDPA cannot compute


@dataclass(frozen=True, slots=True)
class Baseline:
    """Both full prefills, in median seconds to the first token. ``winner`` names the faster one.

    prompt_tokens: of the prompt (the median where there were several).
    """

    winner: str
    ragblend_full_s: float
    transformers_s: float
    prompt_tokens: int

    @property
    def ragblend_won(self) -> bool:
        return self.ragblend_full_s <= self.transformers_s


def judge(prompt_tokens: Sequence[int], own: Sequence[float], theirs: Sequence[float], attention: str) -> Baseline:
    """Compare seconds of our own full path with those of transformers under ``attention``."""
    own_s, theirs_s = statistics.median(own), statistics.median(theirs)
    winner = "ragblend full" if own_s <= theirs_s else f"transformers {attention}"
    return Baseline(winner, own_s, theirs_s, round(statistics.median(prompt_tokens)))


@contextmanager
def transformers_attention(adapter: DecoderAdapter) -> Iterator[str]:
    """Run the model with transformers' own attention, whose name is given; ours is back afterwards.

    No request may run on the engine meanwhile.
    """
    model = adapter.model
    try:
        try:
            model.set_attn_implementation(_ATTENTION)
            attention = _ATTENTION
        except ValueError:
            model.set_attn_implementation(_WITHOUT_SDPA)
            attention = _WITHOUT_SDPA
        yield attention
    finally:
        model.set_attn_implementation(ATTENTION_NAME)


@dataclass(frozen=True)
class TransformersPrefill:
    """seconds: to the first token. logits: of the last prompt token, [vocabulary]."""

    seconds: float
    logits: Tensor
    cache: DynamicCache


@torch.inference_mode()
def transformers_prefill(adapter: DecoderAdapter, token_ids: Sequence[int]) -> TransformersPrefill:
    """Full prefill by the model's own forward; call it inside ``transformers_attention``."""
    began = time.perf_counter()
    cache = DynamicCache(config=adapter.model.config)
    logits = _forward(adapter, token_ids, cache, 1)[0]
    int(logits.argmax())  # the first token; on a GPU this waits for it
    return TransformersPrefill(time.perf_counter() - began, logits, cache)


@torch.inference_mode()
def transformers_step_logits(adapter: DecoderAdapter, prefill: TransformersPrefill, token_ids: Sequence[int]) -> Tensor:
    """Logits [n, vocabulary] that predict each of ``token_ids`` behind the prefilled prompt. Uses the cache up."""
    if len(token_ids) == 1:
        return prefill.logits[None]
    return torch.cat([prefill.logits[None], _forward(adapter, token_ids[:-1], prefill.cache, len(token_ids) - 1)])


def _forward(adapter: DecoderAdapter, token_ids: Sequence[int], cache: DynamicCache, logits: int) -> Tensor:
    ids = torch.tensor([token_ids], device=adapter.device)
    argument = adapter.decode_arguments(cache)
    output = adapter.model(input_ids=ids, use_cache=True, logits_to_keep=logits, **argument)
    result: Tensor = output.logits[0]
    return result
