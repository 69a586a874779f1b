"""One request, from a prompt to a filled canvas and the logits of its first token."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from ragblend.blend.anchor import Anchor
from ragblend.blend.controller import Controller
from ragblend.blend.loader import Loader
from ragblend.blend.plan import make_plan, shared_prefix
from ragblend.blend.policies import Policy, Request
from ragblend.blend.stored import LostChunkError
from ragblend.errors import ModelError
from ragblend.models.adapter import DecoderAdapter
from ragblend.models.canvas import Canvas
from ragblend.prefix.chain import Reused
from ragblend.prefix.request import PrefixRequest
from ragblend.prompt import Prompt
from ragblend.store.base import KVStore


@dataclass(frozen=True)
class Blended:
    """canvas: holds KV for every prompt position. logits: of the last prompt token, [vocabulary].

    computed: rows computed. recomputed: of them, the reused tokens that the policy chose.
    cached: prompt tokens whose KV was reused (recomputed ones included). hits, misses and matched_tokens as
    in the plan. Seconds as in Timings. rows: those computed, sorted. prefix_tokens: as in the plan.
    approximate: start, length and key of what was reused inexactly and recomputed only in part. ratio: of
    recomputing, that was used.
    """

    canvas: Canvas
    logits: Tensor
    prompt_tokens: int
    cached: int
    computed: int
    recomputed: int
    hits: int
    misses: int
    matched_tokens: int
    load_s: float
    hidden_load_s: float
    select_s: float
    recompute_s: float
    rows: Tensor
    prefix_tokens: int
    approximate: Reused
    ratio: float

    def computed_between(self, first: int, last: int) -> int:
        """How many rows from position ``first`` to before ``last`` were computed."""
        return int(((self.rows >= first) & (self.rows < last)).sum())


def blend(
    adapter: DecoderAdapter,
    anchor: Anchor,
    prompt: Prompt,
    *,
    policy: Policy,
    ratio: float | Controller,
    store: KVStore | None = None,
    room: int = 0,
    cancelled: Callable[[], bool] = lambda: False,
    prefix: PrefixRequest | None = None,
) -> Blended:
    """Fill a canvas with the prompt's KV, reusing what the policy allows.

    ratio: share of the candidates that the policy recomputes, or who chooses it once loading has begun.
    room: positions to keep free behind the prompt for the answer. cancelled: asked before each layer;
    when it says yes, GenerationCancelled is raised and everything is freed. A chunk that cannot be
    read to its end is discarded from the store and the request planned again without it. prefix: where
    the prompt's beginning is looked up.
    """
    lost: set[str] = set()
    while True:
        kept = prefix.find(longer_than=shared_prefix(prompt, anchor)) if prefix else ()
        plan = make_plan(prompt, anchor, store, policy.reuse, adapter.device, lost, kept)
        canvas = adapter.canvas(len(plan) + room)
        try:
            with Loader(adapter, plan, canvas, cancelled) as loader:
                chosen = ratio.ratio(policy, plan, loader) if isinstance(ratio, Controller) else ratio
                return _run(Request(adapter, plan, canvas, loader, chosen), policy)
        except LostChunkError as error:
            lost.add(error.key)
            if not (prefix and prefix.discard(error.key, error.cause)) and store is not None:
                store.discard(error.key, error.cause)
        finally:
            plan.close()


def _run(request: Request, policy: Policy) -> Blended:
    plan, loader = request.plan, request.loader
    began, waited_before = time.perf_counter(), loader.waited
    run = policy.select(request)
    selected, waited_by_then = time.perf_counter(), loader.waited
    logits = request.adapter.forward_rows(request.canvas, plan.token_ids, run)
    ended = time.perf_counter()
    if logits is None:
        raise ModelError(f"policy {policy.name!r} stopped before the last layer: it must return a whole pass")
    recomputed = run.rows.numel() - plan.mandatory.numel()
    partly = recomputed < plan.candidates.numel()
    inexact = [p for p in plan.placements if partly and not (p.exact or p.settled)]
    return Blended(
        canvas=request.canvas,
        logits=logits,
        prompt_tokens=len(plan),
        cached=len(plan) - plan.mandatory.numel(),
        computed=run.rows.numel(),
        recomputed=recomputed,
        hits=plan.hits,
        misses=plan.misses,
        matched_tokens=plan.matched_tokens,
        load_s=loader.waited,
        hidden_load_s=max(0.0, loader.seconds - loader.waited),
        select_s=selected - began - (waited_by_then - waited_before),
        recompute_s=ended - selected - (loader.waited - waited_by_then),
        rows=run.rows,
        prefix_tokens=plan.prefix_tokens,
        approximate=tuple((p.start, p.reader.tokens, p.key or "") for p in inexact),
        ratio=request.ratio,
    )
