"""How close a blended canvas is to full prefill: distributions of the next tokens, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ragblend.blend.blender import Blended
from ragblend.config import GenerationSettings
from ragblend.generate import generate_ids
from ragblend.models.adapter import DecoderAdapter


class Continuations:
    """Continues one blended prompt again and again; each call leaves the canvas as the blend left it."""

    def __init__(self, adapter: DecoderAdapter, blended: Blended, prompt_ids: Sequence[int]) -> None:
        self._adapter = adapter
        self._blended = blended
        self._prompt_ids = tuple(prompt_ids)

    def step_logits(self, token_ids: Sequence[int]) -> Tensor:
        """Teacher-forced: logits [n, vocabulary] that predict each of the n (at least one) ``token_ids``."""
        first = self._blended.logits[None]
        if len(token_ids) == 1:
            return first
        given = torch.tensor([token_ids[:-1]], device=self._adapter.device)
        rest = self._adapter.append(self._blended.canvas, given, logits=len(token_ids) - 1)[0]
        self._reset()
        return torch.cat([first, rest])

    def greedy(self, max_tokens: int) -> tuple[int, ...]:
        """The greedy answer, the end-of-sequence token included if it comes."""
        ids = torch.tensor(self._prompt_ids, device=self._adapter.device)
        answer = tuple(generate_ids(self._adapter, self._blended, ids, GenerationSettings(max_tokens=max_tokens)))
        self._reset()
        return answer

    def greedy_along(self, draft: Sequence[int], logits: Tensor, max_tokens: int) -> tuple[int, ...]:
        """The greedy answer, knowing the step ``logits`` along a ``draft`` that ended as a greedy answer ends.

        Where the answer follows the draft nothing needs to be generated, which saves most of the time.
        """
        agreed = leading_agreement(draft, logits)
        if agreed == len(draft):
            return tuple(draft)
        begun = tuple(draft[:agreed])
        if begun:
            self._adapter.append(self._blended.canvas, torch.tensor([begun], device=self._adapter.device))
        branch = replace(self._blended, logits=logits[agreed])
        ids = torch.tensor(self._prompt_ids + begun, device=self._adapter.device)
        settings = GenerationSettings(max_tokens=max_tokens - agreed)
        answer = begun + tuple(generate_ids(self._adapter, branch, ids, settings))
        self._reset()
        return answer

    def _reset(self) -> None:
        self._blended.canvas.set_length(self._blended.prompt_tokens)


def leading_agreement(token_ids: Sequence[int], logits: Tensor) -> int:
    """How many of ``token_ids``, from the first on, are the most likely ones under ``logits`` [n, vocabulary]."""
    agrees = (logits.argmax(dim=-1).cpu() == torch.tensor(token_ids)).long()
    return int(agrees.cumprod(dim=0).sum())


def mean_kl(reference: Tensor, other: Tensor) -> float:
    """Mean over steps of KL(reference || other), in nats, of logits [n, vocabulary]."""
    ours, theirs = reference.float().log_softmax(dim=-1), other.float().log_softmax(dim=-1)
    return float((ours.exp() * (ours - theirs)).sum(dim=-1).mean())


def top1_agreement(reference: Tensor, other: Tensor) -> float:
    """Share of steps with the same most likely token, of logits [n, vocabulary]."""
    return float((reference.argmax(dim=-1) == other.argmax(dim=-1)).float().mean())


def mean_nll(token_ids: Sequence[int], logits: Tensor) -> float:
    """Mean negative log-likelihood of ``token_ids`` per token, in nats, under step logits [n, vocabulary]."""
    chosen = torch.tensor(token_ids, device=logits.device)
    return float(torch.nn.functional.cross_entropy(logits.float(), chosen))
