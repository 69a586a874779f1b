"""Prefilling chunks behind the anchor, in batches, and keeping their own rows as canonical KV."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch

from ragblend.blend.anchor import Anchor
from ragblend.errors import ConfigError, GenerationCancelled
from ragblend.kernels.layout import LayerKV
from ragblend.models.adapter import DecoderAdapter
from ragblend.store.base import ChunkKV

# Tokens computed at once: enough to keep matrix products busy, little enough to bound memory.
BATCH_TOKENS = 2048
# Each chunk of a batch has its own copy of the anchor's rows; this bounds what a batch's canvas holds.
CANVAS_TOKENS = 4 * BATCH_TOKENS


def prefill_chunks(
    adapter: DecoderAdapter,
    anchor: Anchor,
    chunks: Sequence[tuple[int, ...]],
    batch_tokens: int = BATCH_TOKENS,
    cancelled: Callable[[], bool] | None = None,
) -> Iterator[ChunkKV]:
    """Canonical KV of each chunk behind ``anchor``, in the given order.

    Chunks of a batch are padded on the right: causal attention keeps padding out of earlier rows.
    cancelled: asked before each layer; when it says yes, GenerationCancelled is raised. Raises ConfigError
    for an empty chunk or one that does not fit the model's context.
    """

    def on_layer(_: int) -> None:
        if cancelled is not None and cancelled():
            raise GenerationCancelled("prefilling was cancelled")

    start = len(anchor.token_ids)
    for chunk in chunks:
        if not chunk or start + len(chunk) > adapter.context_length:
            raise ConfigError(
                f"a chunk of {len(chunk):,} tokens behind an anchor of {start:,} does not fit "
                f"the model's context of {adapter.context_length:,}: use chunks of 1 token up to that"
            )
    for batch in _batches(chunks, batch_tokens, start):
        began = time.perf_counter()
        longest = max(map(len, batch))
        canvas = adapter.canvas(start + longest, batch=len(batch))
        anchor.place(canvas)
        padded = [(*chunk, *[0] * (longest - len(chunk))) for chunk in batch]
        adapter.append(canvas, torch.tensor(padded, device=adapter.device), on_layer=on_layer)
        layers = adapter.canonical_rows(canvas, start, start + longest)
        del canvas
        seconds_per_token = (time.perf_counter() - began) / sum(map(len, batch))
        for index, chunk in enumerate(batch):
            yield replace(_take(layers, index, chunk), seconds=seconds_per_token * len(chunk))


def _batches(chunks: Sequence[tuple[int, ...]], batch_tokens: int, anchored: int) -> Iterator[list[tuple[int, ...]]]:
    batch: list[tuple[int, ...]] = []
    for chunk in chunks:
        longest, count = max(map(len, [*batch, chunk])), len(batch) + 1
        if batch and (longest * count > batch_tokens or (anchored + longest) * count > CANVAS_TOKENS):
            yield batch
            batch = []
        batch.append(chunk)
    if batch:
        yield batch


def _take(layers: Sequence[LayerKV], index: int, token_ids: tuple[int, ...]) -> ChunkKV:
    """One batch entry's own rows, copied to the CPU so that the batch can be freed."""
    count = len(token_ids)
    own = [
        LayerKV(layer.keys[index, :, :count].cpu().clone(), layer.values[index, :, :count].cpu().clone())
        for layer in layers
    ]
    return ChunkKV(token_ids, tuple(own))
