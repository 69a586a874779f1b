"""The correctness gate: what must hold for a model before its KV may be blended.

Every check runs the model itself on random ids, so a folder without a tokenizer is enough, and
nothing is known about the model beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor
from transformers import DynamicCache

from ragblend.blend.anchor import Anchor
from ragblend.blend.blender import blend
from ragblend.blend.policies import policy_named
from ragblend.blend.prefill import prefill_chunks
from ragblend.models.adapter import DecoderAdapter
from ragblend.models.attention import ATTENTION_NAME
from ragblend.models.canvas import Canvas
from ragblend.models.precision import in_float32
from ragblend.models.rows import RowRun
from ragblend.prompt import Prompt, Segment
from ragblend.store.memory import MemoryStore

# In fp32 two right computations differ only by the order of sums: 1e-4 for numbers up to 100, in
# proportion above (Qwen2's keys reach 350). Some models round more (Gemma 3 270M, whose hidden states reach
# tens of thousands): then it is this many times what transformers' own computation changes by when it takes
# two steps, and at most 1e-5 of the largest number. In 16 bits each rounds by itself, layer after layer,
# and transformers' own attention implementations differ by a tenth of the largest logit.
FP32_TOLERANCE = 1e-4
FP32_RANGE = 100.0
OWN_ROUNDINGS = 3
LARGEST_FP32_SHARE = 1e-5
HALF_PRECISION_SHARE = 0.25
_ANCHOR, _FIRST, _SECOND, _SUFFIX = 7, 33, 29, 12


@dataclass(frozen=True, slots=True)
class Check:
    """One equality. max_abs_diff and tolerance are in logits, or in key units where the name says keys."""

    name: str
    passed: bool
    max_abs_diff: float
    tolerance: float


@dataclass(frozen=True, slots=True)
class GateReport:
    """The gate's verdict on one model."""

    model: str
    family: str
    passed: bool
    checks: tuple[Check, ...]

    def reason(self) -> str:
        """The failed checks, in one line."""
        failed = [f"{check.name} is off by {check.max_abs_diff:.2g}" for check in self.checks if not check.passed]
        return "; ".join(failed)


def run_gate(adapter: DecoderAdapter, name: str) -> GateReport:
    """Run every check on ``adapter``'s model and report.

    A model in 16 bits is checked in fp32, where rounding hides nothing, if memory allows; nobody
    else may use it meanwhile.
    """
    with in_float32(adapter.model):
        checks = tuple(_checks(_Subject(adapter)))
    return GateReport(name, adapter.family, all(check.passed for check in checks), checks)


# Each must give the logits of transformers' own full prefill: name, order of chunks, policy, ratio.
_LOGIT_CHECKS = (
    ("full policy = full prefill", (0, 1), "full", 0.0),
    ("every reused token recomputed = full prefill", (0, 1), "query", 1.0),
    ("hkvd at ratio 1 = full prefill", (0, 1), "hkvd", 1.0),
    ("chunk behind its own anchor = exact prefix reuse", (0,), "none", 0.0),
)


class _Subject:
    """A model with random ids: an anchor, two chunks and a suffix, prefilled into a store."""

    def __init__(self, adapter: DecoderAdapter) -> None:
        self.adapter = adapter
        vocabulary = adapter.model.config.get_text_config().vocab_size
        lengths = (_ANCHOR, _FIRST, _SECOND, _SUFFIX)
        ids = iter(torch.randint(0, vocabulary, (sum(lengths),), generator=_seeded()).tolist())
        anchor_ids, first, second, suffix = (tuple(islice(ids, length)) for length in lengths)
        self.chunks: tuple[tuple[int, ...], ...] = (first, second)
        self.suffix: tuple[int, ...] = suffix
        self.anchor = Anchor(adapter, anchor_ids)
        self.store = MemoryStore(budget_bytes=1 << 40)
        for key, kv in zip("ab", prefill_chunks(adapter, self.anchor, self.chunks), strict=True):
            self.store.put(key, kv)

    def prompt(self, order: Sequence[int]) -> Prompt:
        """The anchor, the chunks numbered in ``order``, and the suffix."""
        chunks = [Segment("chunk", self.chunks[index], key="ab"[index]) for index in order]
        return Prompt((Segment("prefix", self.anchor.token_ids), *chunks, Segment("suffix", self.suffix)))

    def blended_logits(self, order: Sequence[int], policy: str, ratio: float) -> Tensor:
        blended = blend(
            self.adapter, self.anchor, self.prompt(order), policy=policy_named(policy), ratio=ratio, store=self.store
        )
        return blended.logits.float()

    @torch.inference_mode()
    def own_logits(self, order: Sequence[int], first: int = 0) -> Tensor:
        """transformers' own full prefill of the same ids, with its own attention and cache.

        first: compute so many ids in a step of their own.
        """
        model, cache = self.adapter.model, DynamicCache(config=self.adapter.model.config)
        ids = torch.tensor([self.prompt(order).token_ids], device=self.adapter.device)
        model.set_attn_implementation("eager")
        try:
            for step in (ids[:, :first], ids[:, first:]):
                if step.numel():
                    output = model(input_ids=step, use_cache=True, **self.adapter.decode_arguments(cache))
            logits: Tensor = output.logits
            return logits[0, -1].float()
        finally:
            model.set_attn_implementation(ATTENTION_NAME)


def _checks(subject: _Subject) -> Iterator[Check]:
    own = {order: subject.own_logits(order) for order in {order for _, order, _, _ in _LOGIT_CHECKS}}
    share = _tolerated_share(subject, own[0, 1])
    for name, order, policy, ratio in _LOGIT_CHECKS:
        yield _compare(name, subject.blended_logits(order, policy, ratio), own[order], share)
    for order in ((0, 1), (1, 0)):
        yield _placed_keys(subject, order, share)
    yield _round_trip(subject.adapter, share)


def _tolerated_share(subject: _Subject, logits: Tensor) -> float:
    """What a right computation may be off by, as a share of the largest number. logits: in one step, of both chunks."""
    if subject.adapter.dtype != torch.float32:
        return HALF_PRECISION_SHARE
    stepped = [subject.own_logits((0, 1), first) for first in (1, _ANCHOR)]
    rounding = max(float((each - logits).abs().max()) for each in stepped) / float(logits.abs().max())
    return max(FP32_TOLERANCE / FP32_RANGE, min(OWN_ROUNDINGS * rounding, LARGEST_FP32_SHARE))


def _placed_keys(subject: _Subject, order: Sequence[int], share: float) -> Check:
    """Keys of placed chunks against keys that the model itself projects and rotates at those positions."""
    adapter = subject.adapter
    prompt = subject.prompt(order)
    canvas = blend(adapter, subject.anchor, prompt, policy=policy_named("none"), ratio=0.0, store=subject.store).canvas
    placed, expected = [], []
    for segment, start in zip(prompt.segments, prompt.starts, strict=True):
        if segment.kind != "chunk":
            continue
        reference = _projected_keys(adapter, subject.anchor.token_ids, segment.token_ids, start)
        for layer, keys in enumerate(reference):
            placed.append(canvas.keys(layer)[0, :, start : start + len(segment)].float().flatten())
            expected.append(keys.float().flatten())
    names = " then ".join(("first", "second")[index] for index in order)
    return _compare(f"placed keys = projected keys ({names})", torch.cat(placed), torch.cat(expected), share)


def _projected_keys(
    adapter: DecoderAdapter, anchor_ids: tuple[int, ...], chunk_ids: tuple[int, ...], start: int
) -> list[Tensor]:
    """Each layer's keys [kv_heads, n, head_dim] of a chunk prefilled behind the anchor, but rotated for ``start``.

    The first pass records what enters each layer. The second pass feeds the same to the layers with
    the rows at their target positions, so that the model's own code projects and rotates them.
    """
    inputs: list[Tensor] = []

    def record(_: int, hidden: Tensor) -> Tensor:
        inputs.append(hidden[:, len(anchor_ids) :].clone())
        return hidden

    _run_rows(adapter, (*anchor_ids, *chunk_ids), 0, record)
    canvas = _run_rows(adapter, chunk_ids, start, lambda layer, _: inputs[layer])
    return [canvas.keys(layer)[0, :, start : start + len(chunk_ids)] for layer in range(adapter.layer_count)]


def _run_rows(
    adapter: DecoderAdapter, ids: tuple[int, ...], start: int, on_hidden: Callable[[int, Tensor], Tensor]
) -> Canvas:
    """Run ``ids`` at positions start.. of a canvas that is zero before them."""
    end = start + len(ids)
    canvas = adapter.canvas(end)
    for layer in canvas.canvas_layers:
        layer.keys.zero_()
        layer.values.zero_()
    token_ids = torch.tensor((*[0] * start, *ids), device=adapter.device)
    rows = torch.arange(start, end, device=adapter.device)
    adapter.forward_rows(canvas, token_ids, RowRun(rows, end=end, on_hidden=on_hidden))
    return canvas


def _round_trip(adapter: DecoderAdapter, share: float) -> Check:
    """Rotating keys to the end of the context and back changes nothing."""
    positions = torch.arange(adapter.context_length - 8, adapter.context_length, device=adapter.device)
    angles = adapter.rotary.angles(positions)
    originals, returned = [], []
    for index, shape in enumerate(adapter.shapes):
        keys = torch.randn(shape.kv_heads, 8, shape.head_dim, generator=_seeded()).to(adapter.device, adapter.dtype)
        turned = keys.clone()
        adapter.rotary.rotate_(index, turned, angles)
        adapter.rotary.rotate_(index, turned, angles, inverse=True)
        originals.append(keys.float().flatten())
        returned.append(turned.float().flatten())
    return _compare("rotate and rotate back (keys)", torch.cat(returned), torch.cat(originals), share)


def _compare(name: str, ours: Tensor, theirs: Tensor, share: float) -> Check:
    """A difference that is not a number fails. share: of the largest number that may be off."""
    difference, largest = float((ours - theirs).abs().max()), float(theirs.abs().max())
    tolerance = max(FP32_TOLERANCE, share * largest)
    return Check(name, difference <= tolerance, difference, tolerance)


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)
