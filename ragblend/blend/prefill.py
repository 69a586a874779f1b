"""Prefilling chunks behind the anchor and their context, in batches, and keeping their own rows as canonical KV."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from ragblend.blend.anchor import Anchor
from ragblend.errors import ConfigError, GenerationCancelled
from ragblend.kernels.layout import LayerKV
from ragblend.models.adapter import DecoderAdapter
from ragblend.store.base import ChunkKV

# Tokens computed at once: enough to keep matrix products busy, little enough to bound memory.
BATCH_TOKENS = 2048
# Each run of a batch has its own copy of the anchor's rows; this bounds what a batch's canvas holds.
CANVAS_TOKENS = 4 * BATCH_TOKENS

Ids = tuple[int, ...]


@dataclass(slots=True)
class _Run:
    """Chunks that are computed one behind the other.

    head: how many of the anchor's rows stand before ``token_ids``. chunks: each with where it begins in them.
    """

    head: int
    chunks: list[tuple[int, Ids]]
    token_ids: Ids

    @property
    def end(self) -> int:
        return self.head + len(self.token_ids)


def prefill_chunks(
    adapter: DecoderAdapter,
    anchor: Anchor,
    chunks: Sequence[Ids],
    contexts: Sequence[Ids] | None = None,
    batch_tokens: int = BATCH_TOKENS,
    cancelled: Callable[[], bool] | None = None,
) -> Iterator[ChunkKV]:
    """Canonical KV of each chunk behind ``anchor``, in the given order.

    contexts: for each chunk the ids that take the preamble's place before it, if any do. A chunk whose context begins
    with the context of the chunk before it and that chunk is computed along with it.

    Runs of a batch are padded on the right: causal attention keeps padding out of earlier rows.
    cancelled: asked before each layer; when it says yes, GenerationCancelled is raised. Raises ConfigError
    for an empty chunk or one that does not fit the model's context.
    """

    def on_layer(_: int) -> None:
        if cancelled is not None and cancelled():
            raise GenerationCancelled("prefilling was cancelled")

    runs = _runs(anchor, chunks, contexts or [()] * len(chunks), adapter.context_length)
    for batch in _batches(runs, batch_tokens):
        began = time.perf_counter()
        start, end = batch[0].head, max(run.end for run in batch)
        canvas = adapter.canvas(end, batch=len(batch))
        anchor.place(canvas, start)
        padded = [(*run.token_ids, *[0] * (end - run.end)) for run in batch]
        adapter.append(canvas, torch.tensor(padded, device=adapter.device), on_layer=on_layer)
        layers = adapter.canonical_rows(canvas, start, end)
        del canvas
        seconds_per_token = (time.perf_counter() - began) / sum(len(chunk) for run in batch for _, chunk in run.chunks)
        for index, run in enumerate(batch):
            for first, chunk in run.chunks:
                yield replace(_take(layers, index, first, chunk), seconds=seconds_per_token * len(chunk))


def _runs(anchor: Anchor, chunks: Sequence[Ids], contexts: Sequence[Ids], context_length: int) -> list[_Run]:
    runs: list[_Run] = []
    for chunk, context in zip(chunks, contexts, strict=True):
        before = len(anchor.before(context))
        if not chunk or before + len(chunk) > context_length:
            raise ConfigError(
                f"a chunk of {len(chunk):,} tokens behind {before:,} others does not fit "
                f"the model's context of {context_length:,}: use chunks of 1 token up to that"
            )
        head = before - len(context)
        if context and runs and runs[-1].head == head and context[: len(runs[-1].token_ids)] == runs[-1].token_ids:
            runs[-1].chunks.append((len(context), chunk))
            runs[-1].token_ids = context + chunk
        else:
            runs.append(_Run(head, [(len(context), chunk)], context + chunk))
    return runs


def _batches(runs: Sequence[_Run], batch_tokens: int) -> Iterator[list[_Run]]:
    """Runs in order, those together that begin at the same position and are not too much together."""
    batch: list[_Run] = []
    for run in runs:
        head, end, count = run.head, max(each.end for each in (*batch, run)), len(batch) + 1
        too_much = (end - head) * count > batch_tokens or end * count > CANVAS_TOKENS
        if batch and (batch[0].head != head or too_much):
            yield batch
            batch = []
        batch.append(run)
    if batch:
        yield batch


def _take(layers: Sequence[LayerKV], index: int, first: int, token_ids: Ids) -> ChunkKV:
    """A chunk's rows of one batch entry, copied to the CPU so that the batch can be freed."""
    own = slice(first, first + len(token_ids))
    kept = (LayerKV(of.keys[index, :, own].cpu().clone(), of.values[index, :, own].cpu().clone()) for of in layers)
    return ChunkKV(token_ids, tuple(kept))
