"""Rounds: in each one every system answers the same prompt."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ragblend.bench import fidelity
from ragblend.bench.compare.contestant import Contestant
from ragblend.bench.compare.peers.protocol import Reply
from ragblend.bench.compare.report import CompareRow, Measurement, make_row
from ragblend.bench.compare.systems import REFERENCE
from ragblend.bench.compare.workloads import Workload
from ragblend.prompt import Prompt

SETTLE_S = 0.5  # threads of the system before may still spin for a moment


@dataclass
class _Series:
    """What one system did on one workload so far."""

    contestant: Contestant
    prepare_s: float = 0.0
    measured: list[Measurement] = field(default_factory=list)


class Rounds:
    """In each round every system answers the same prompt, in a turn that moves on from round to round."""

    def __init__(
        self, team: Sequence[Contestant], answer_tokens: int, folder: Path, tokenizer: Any, advance: Callable[[], None]
    ) -> None:
        self._team = team
        self._answer_tokens = answer_tokens
        self._folder = folder
        self._tokenizer = tokenizer
        self._advance = advance
        self.measurements: list[Measurement] = []

    def rows(self, workload: Workload) -> list[CompareRow]:
        """Run the workload; what a system did before it failed does not count."""
        series = [_Series(contestant) for contestant in self._team if contestant.process is not None]
        for each in series:
            with each.contestant.absent_on_failure():
                began = time.perf_counter()
                each.contestant.running().prepare(workload.chunks)
                each.prepare_s = time.perf_counter() - began if workload.chunks else 0.0
        for number, prompt in enumerate(workload.prompts):
            turn = number % len(series) if series else 0
            replies = self._ask(series[turn:] + series[:turn], prompt)
            if number > 0:
                self._judge(workload.name, number, prompt, series, replies)
        finished = [each for each in series if each.contestant.process is not None]
        full = next((each.measured for each in finished if each.contestant.system.name == REFERENCE), None)
        rows = []
        for each in finished:
            with each.contestant.absent_on_failure():
                peak = each.contestant.running().peak_memory()
                rows.append(make_row(each.measured, full, peak, each.prepare_s))
                self.measurements += each.measured
        return rows

    def _ask(self, series: Sequence[_Series], prompt: Prompt) -> dict[str, Reply]:
        replies = {}
        for each in series:
            if each.contestant.process is not None:
                with each.contestant.absent_on_failure():
                    time.sleep(SETTLE_S)
                    replies[each.contestant.system.name] = each.contestant.running().answer(prompt, self._answer_tokens)
            self._advance()
        return replies

    def _judge(
        self, workload: str, number: int, prompt: Prompt, series: Sequence[_Series], replies: dict[str, Reply]
    ) -> None:
        """Compare the answers to one prompt with transformers' full prefill."""
        full = replies.get(REFERENCE)
        right = None
        # The reference comes first: the others are asked for their logits along its answer.
        for each in sorted(series, key=lambda each: each.contestant.system.name != REFERENCE):
            name = each.contestant.system.name
            if name not in replies:
                continue
            logits = None
            if full is not None:
                with each.contestant.absent_on_failure():
                    logits = self._step_logits(each.contestant, full.token_ids or [])
            right = logits if name == REFERENCE else right
            compared = None if logits is None or right is None else (right, logits)
            each.measured.append(
                Measurement(
                    workload=workload,
                    system=name,
                    prompt=number,
                    prompt_tokens=len(prompt),
                    reused_tokens=replies[name].reused_tokens,
                    tokens=replies[name].tokens,
                    ttft_s=replies[name].ttft_s,
                    total_s=replies[name].total_s,
                    answer=self._text(replies[name]),
                    full_answer=self._text(full) if full is not None else None,
                    kl_to_full=fidelity.mean_kl(*compared) if compared else None,
                    top1_agreement=fidelity.top1_agreement(*compared) if compared else None,
                )
            )

    def _step_logits(self, contestant: Contestant, token_ids: Sequence[int]) -> torch.Tensor | None:
        path = self._folder / "logits.npy"
        if not contestant.running().step_logits(token_ids, path):
            return None
        return torch.from_numpy(np.load(path))

    def _text(self, reply: Reply) -> str:
        if reply.text is not None:
            return reply.text.strip()
        return str(self._tokenizer.decode(reply.token_ids or [], skip_special_tokens=True)).strip()
