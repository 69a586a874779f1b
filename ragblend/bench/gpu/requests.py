"""Time to the first token of whole requests: every policy, with the chunks' KV in each tier, on random weights."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass

import torch

from ragblend.bench.gpu.clock import Ceilings
from ragblend.bench.gpu.decoding import DecodingRow, measure
from ragblend.bench.gpu.models import CONTEXT_LENGTH, random_model
from ragblend.bench.gpu.operations import CHUNK_TOKENS, SUFFIX_TOKENS
from ragblend.bench.gpu.shapes import ModelShape
from ragblend.bench.stores import UNBOUNDED, temporary_store
from ragblend.blend.anchor import Anchor
from ragblend.blend.blender import blend
from ragblend.blend.policies import policy_named
from ragblend.kernels.implementation import Implementation
from ragblend.kernels.layout import LayerKV
from ragblend.models.adapter import DecoderAdapter
from ragblend.prompt import Prompt, Segment
from ragblend.store.base import ChunkKV, KVStore
from ragblend.store.device import DeviceStore
from ragblend.store.memory import MemoryStore

POLICIES = ("full", "prefix", "none", "hkvd", "query")
TIERS = ("device", "host", "disk")
ANCHOR_TOKENS = 32


@dataclass(frozen=True, slots=True)
class RequestRow:
    """One policy at one context, with the chunks in one tier. ttft_s: the median.

    computed_tokens: rows computed. bound_s: bytes to load by the tier's bandwidth, plus the computed rows' share
    of a full prefill. of_bound: ttft_s by it. skipped: why it was not measured; then there are no figures.
    """

    model: str
    context: int
    policy: str
    tier: str
    ratio: float
    skipped: str = ""
    ttft_s: float | None = None
    speedup_vs_full: float | None = None
    computed_tokens: int | None = None
    bound_s: float | None = None
    of_bound: float | None = None


def run(
    *,
    device: torch.device,
    shape: ModelShape,
    contexts: Sequence[int],
    ceilings: Ceilings,
    ratio: float = 0.15,
    repeats: int = 3,
    dtype: torch.dtype = torch.bfloat16,
    kernels: Implementation = "auto",
    deadline: float = float("inf"),
) -> tuple[list[RequestRow], list[DecodingRow]]:
    """Measure one model: requests at every context, and decoding behind them.

    What does not fit into memory or begins after ``deadline`` (time.monotonic) is skipped.
    """
    longest = max(contexts)
    needed = shape.weight_bytes + 2 * shape.kv_bytes(longest) + (4 << 30)
    if device.type == "cuda" and needed > torch.cuda.mem_get_info(device)[0]:
        return _skipped(shape, contexts, f"needs {needed / 1e9:,.0f} GB of the device's memory"), []
    if shape.eight_bit and device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 9):
        return _skipped(shape, contexts, "the device does not multiply float8"), []
    if time.monotonic() > deadline:
        return _skipped(shape, contexts, "out of time"), []
    adapter = DecoderAdapter(random_model(shape, device, dtype), kernels)
    measured = _Requests(adapter, shape, ratio, repeats, ceilings, deadline)
    rows = [row for context in contexts for row in measured.rows(context)]
    decoding = [measure(adapter, shape, context, ceilings) for context in contexts if time.monotonic() <= deadline]
    return rows, decoding


def _skipped(shape: ModelShape, contexts: Sequence[int], reason: str) -> list[RequestRow]:
    return [RequestRow(shape.name, context, "all", "all", 0.0, skipped=reason) for context in contexts]


class _Requests:
    """Requests on one model."""

    def __init__(
        self,
        adapter: DecoderAdapter,
        shape: ModelShape,
        ratio: float,
        repeats: int,
        ceilings: Ceilings,
        deadline: float,
    ) -> None:
        self.adapter = adapter
        self.shape = shape
        self.ratio = ratio
        self.repeats = repeats
        self.ceilings = ceilings
        self.deadline = deadline
        self.anchor = Anchor(adapter, tuple(range(3, 3 + ANCHOR_TOKENS)))

    def rows(self, context: int) -> Iterator[RequestRow]:
        lengths = [min(CHUNK_TOKENS, context - start) for start in range(0, context, CHUNK_TOKENS)]
        ids = torch.randint(0, self.shape.vocabulary, (context + SUFFIX_TOKENS,)).tolist()
        chunks, start = [], 0
        for number, length in enumerate(lengths):
            chunks.append(Segment("chunk", tuple(ids[start : start + length]), key=f"{number:064x}"))
            start += length
        prefix, suffix = Segment("prefix", self.anchor.token_ids), Segment("suffix", tuple(ids[start:]))
        prompt = Prompt((prefix, *chunks, suffix))
        if len(prompt) > CONTEXT_LENGTH:
            yield from _skipped(self.shape, [context], f"longer than {CONTEXT_LENGTH:,} tokens")
            return
        full, computed = self._measure(prompt, None, "full", 0.0)
        yield self._row(context, "full", "none", 1.0, full, full, computed, full)
        for tier in TIERS:
            with self._stored(tier, chunks) as store:
                bandwidth = self._bandwidth(tier, store, chunks)
                for policy in POLICIES[1:]:
                    ratio = self.ratio if policy in ("hkvd", "query") else 0.0
                    if time.monotonic() > self.deadline:
                        yield RequestRow(self.shape.name, context, policy, tier, ratio, skipped="out of time")
                        continue
                    seconds, computed = self._measure(prompt, store, policy, ratio)
                    reused = chunks[:1] if policy == "prefix" else chunks
                    loaded = self.shape.kv_bytes(sum(map(len, reused)), self.adapter.dtype.itemsize)
                    bound = loaded / bandwidth + computed / len(prompt) * full
                    yield self._row(context, policy, tier, ratio, seconds, full, computed, bound)

    def _row(
        self,
        context: int,
        policy: str,
        tier: str,
        ratio: float,
        seconds: float,
        full: float,
        computed: int,
        bound: float,
    ) -> RequestRow:
        return RequestRow(
            model=self.shape.name,
            context=context,
            policy=policy,
            tier=tier,
            ratio=ratio,
            ttft_s=seconds,
            speedup_vs_full=full / seconds,
            computed_tokens=computed,
            bound_s=bound,
            of_bound=seconds / bound,
        )

    def _measure(self, prompt: Prompt, store: KVStore | None, policy: str, ratio: float) -> tuple[float, int]:
        """Median seconds to the first token, after one request to warm up, and the rows computed."""
        seconds = []
        for _ in range(self.repeats + 1):
            began = time.perf_counter()
            blended = blend(self.adapter, self.anchor, prompt, policy=policy_named(policy), ratio=ratio, store=store)
            int(blended.logits.argmax())  # the first token; on a GPU this waits for it
            seconds.append(time.perf_counter() - began)
        return statistics.median(seconds[1:]), blended.computed

    @contextmanager
    def _stored(self, tier: str, chunks: Sequence[Segment]) -> Iterator[KVStore]:
        """Random KV of every chunk in a store of the tier."""
        opened: AbstractContextManager[KVStore] = temporary_store() if tier == "disk" else self._near(tier)
        with opened as store:
            fill = store.keep if isinstance(store, MemoryStore) else store.put
            for chunk in chunks:
                fill(chunk.key or "", self._random_kv(chunk.token_ids))
            yield store

    def _near(self, tier: str) -> closing[MemoryStore]:
        """The device's memory, or page-locked memory of the host."""
        device = self.adapter.device
        if tier == "device":
            return closing(DeviceStore(UNBOUNDED, device))
        return closing(MemoryStore(UNBOUNDED, page_locked=device.type == "cuda"))

    def _random_kv(self, token_ids: tuple[int, ...]) -> ChunkKV:
        def numbers(kv_heads: int, head_dim: int) -> torch.Tensor:
            return torch.randn(kv_heads, len(token_ids), head_dim, device=self.adapter.device).to(self.adapter.dtype)

        layers = [
            LayerKV(numbers(shape.kv_heads, shape.head_dim), numbers(shape.kv_heads, shape.head_dim))
            for shape in self.adapter.shapes
        ]
        return ChunkKV(token_ids, tuple(layers))

    def _bandwidth(self, tier: str, store: KVStore, chunks: Sequence[Segment]) -> float:
        """Bytes a second that the tier delivers: of the device's copy, of the upload, of the store's own reads."""
        if tier == "device":
            return self.ceilings.copy_bytes_s / 2  # what a copy reads; it writes as much
        if tier == "host":
            return self.ceilings.upload_bytes_s
        read, began = 0, time.perf_counter()
        for chunk in chunks:
            reader = store.open(chunk.key or "", chunk.token_ids)
            if reader is not None:
                with closing(reader):
                    read += sum(reader.layer(index).nbytes for index in range(reader.layer_count))
        return read / (time.perf_counter() - began)
