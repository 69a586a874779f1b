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
# proportion above (Qwen2's keys reach 350). In 16 bits each rounds by itself, layer after layer, and
# transformers' own attention implementations differ by a tenth of the largest logit.
FP32_TOLERANCE = 1e-4
FP32_RANGE = 100.0
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
    def own_logits(self, order: Sequence[int]) -> Tensor:
        """transformers' own full prefill of the same ids, with its own attention and cache."""
        model = self.adapter.model
        ids = torch.tensor([self.prompt(order).token_ids], device=self.adapter.device)
        model.set_attn_implementation("eager")
        try:
            logits: Tensor = model(input_ids=ids, use_cache=False).logits
            return logits[0, -1].float()
        finally:
            model.set_attn_implementation(ATTENTION_NAME)


def _checks(subject: _Subject) -> Iterator[Check]:
    own = {order: subject.own_logits(order) for order in {order for _, order, _, _ in _LOGIT_CHECKS}}
    for name, order, policy, ratio in _LOGIT_CHECKS:
        blended = subject.blended_logits(order, policy, ratio)
        yield _compare(subject.adapter, name, blended, own[order])
    for order in ((0, 1), (1, 0)):
        yield _placed_keys(subject, order)
    yield _round_trip(subject.adapter)


def _placed_keys(subject: _Subject, order: Sequence[int]) -> Check:
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
    return _compare(adapter, f"placed keys = projected keys ({names})", torch.cat(placed), torch.cat(expected))


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


def _round_trip(adapter: DecoderAdapter) -> Check:
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
    return _compare(adapter, "rotate and rotate back (keys)", torch.cat(returned), torch.cat(originals))


def _compare(adapter: DecoderAdapter, name: str, ours: Tensor, theirs: Tensor) -> Check:
    """A difference that is not a number fails."""
    difference, largest = float((ours - theirs).abs().max()), float(theirs.abs().max())
    if adapter.dtype == torch.float32:
        tolerance = FP32_TOLERANCE * max(1.0, largest / FP32_RANGE)
    else:
        tolerance = HALF_PRECISION_SHARE * largest
    return Check(name, difference <= tolerance, difference, tolerance)


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)
