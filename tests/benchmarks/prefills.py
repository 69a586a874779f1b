"""What a chunk may be prefilled behind, besides the preamble: what ``policy_study.py`` compares.

Each way gives a chunk's KV as a library could keep it: from the chunk and other chunks of the same collection,
without any question.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ragblend.bench.passages import Question
from ragblend.bench.stores import UNBOUNDED
from ragblend.blend.anchor import Anchor
from ragblend.blend.prefill import prefill_chunks
from ragblend.engine import Engine
from ragblend.kernels.layout import LayerKV
from ragblend.library.embedding import SentenceEmbedder
from ragblend.models.rows import RowRun
from ragblend.store.base import ChunkKV
from ragblend.store.memory import MemoryStore

Ids = tuple[int, ...]
# A preamble of this many tokens of the collection's own text is about as long as the shipped one.
OWN_TOKENS = 600
# What stands between the beginning of a prompt and a chunk when it is prefilled. "mean": KV of two, half way.
WAYS = (
    "preamble",
    "opening",
    "first token",
    "own text",
    "own text, three times",
    "similar chunks",
    "preamble, similar chunks",
    "mean of preamble and own text",
)


@dataclass(frozen=True)
class Collection:
    """The chunks that questions are asked about, all of them."""

    engine: Engine
    chunks: tuple[Ids, ...]

    @cached_property
    def _similarity(self) -> np.ndarray:
        vectors = SentenceEmbedder().embed_chunks([self.engine.tokenizer.decode(list(ids)) for ids in self.chunks])
        return vectors @ vectors.T

    @cached_property
    def _index(self) -> dict[Ids, int]:
        return {ids: index for index, ids in enumerate(self.chunks)}

    def nearest(self, chunk: Ids, count: int) -> list[Ids]:
        """The most similar other chunks, the most similar one last: a chunk stands next to what is found with it."""
        order = np.argsort(-self._similarity[self._index[chunk]])
        return [self.chunks[index] for index in order if self.chunks[index] != chunk][:count][::-1]

    def others(self, chunk: Ids, tokens: int) -> Ids:
        """``tokens`` tokens of other chunks, the same ones for all but those themselves."""
        shuffled = random.Random(0).sample(self.chunks, len(self.chunks))
        joined = [token for ids in shuffled[:100] if ids != chunk for token in ids]
        return tuple(joined[:tokens])


class Prefills:
    """Stores of a question's chunks, prefilled in one of ``WAYS``; each chunk once a way."""

    def __init__(self, collection: Collection) -> None:
        self._engine = collection.engine
        opening = self._engine.template.prefix_ids
        preamble = self._engine.anchor_ids[len(opening) :]
        own, nearest = collection.others, collection.nearest
        self._contexts: dict[str, Callable[[Ids], Sequence[Ids]]] = {
            "preamble": lambda _: [preamble],
            "opening": lambda _: [()],
            "first token": lambda _: [()],
            "own text": lambda chunk: [own(chunk, OWN_TOKENS)],
            "own text, three times": lambda chunk: [own(chunk, 3 * OWN_TOKENS)],
            "similar chunks": lambda chunk: [_joined(nearest(chunk, 3))],
            "preamble, similar chunks": lambda chunk: [preamble + _joined(nearest(chunk, 3))],
            "mean of preamble and own text": lambda chunk: [preamble, own(chunk, OWN_TOKENS)],
        }
        self._known: dict[tuple[str, Ids], ChunkKV] = {}

    def store(self, question: Question, way: str) -> MemoryStore:
        store = MemoryStore(budget_bytes=UNBOUNDED)
        for chunk in question.prompt.chunks:
            store.put(chunk.key or "", self.kv(chunk.token_ids, way))
        return store

    def kv(self, chunk: Ids, way: str) -> ChunkKV:
        if (way, chunk) not in self._known:
            opening = self._engine.template.prefix_ids[: 1 if way == "first token" else None]
            kvs = [self._behind(chunk, (*opening, *context)) for context in self._contexts[way](chunk)]
            self._known[way, chunk] = kvs[0] if len(kvs) == 1 else _mean(kvs)
        return self._known[way, chunk]

    def sensitivity(self, chunk: Ids) -> Tensor:
        """How far each token's values in the upper half of the layers turn out otherwise without the preamble."""
        one, other = self.kv(chunk, "preamble"), self.kv(chunk, "opening")
        upper = range(len(one.layers) // 2, len(one.layers))
        distances = [
            (one.layers[layer].values.float() - other.layers[layer].values.float()).square().sum(dim=(0, 2))
            for layer in upper
        ]
        return torch.stack(distances).sum(dim=0)

    def hidden(self, chunk: Ids, layers: int) -> list[Tensor]:
        """Inputs [tokens, hidden size] of the first ``layers`` layers, as the chunk has them behind the preamble."""
        engine, seen = self._engine, []
        start, stop = len(engine.anchor_ids), len(engine.anchor_ids) + len(chunk)
        canvas = engine.adapter.canvas(stop)
        engine.anchor.place(canvas)

        def keep(_: int, hidden: Tensor) -> Tensor:
            seen.append(hidden[0].clone())
            return hidden

        run = RowRun(torch.arange(start, stop), end=stop, on_hidden=keep, stop_before=layers)
        engine.adapter.forward_rows(canvas, torch.tensor(engine.anchor_ids + chunk), run)
        return seen

    def _behind(self, chunk: Ids, anchor_ids: Ids) -> ChunkKV:
        anchor = Anchor(self._engine.adapter, anchor_ids)
        return next(iter(prefill_chunks(self._engine.adapter, anchor, [chunk])))


def _joined(chunks: Sequence[Ids]) -> Ids:
    return tuple(token for chunk in chunks for token in chunk)


def _mean(kvs: Sequence[ChunkKV]) -> ChunkKV:
    """Canonical KV half way between several."""

    def mean(tensors: Sequence[Tensor]) -> Tensor:
        return torch.stack([tensor.float() for tensor in tensors]).mean(dim=0).to(tensors[0].dtype)

    layers = zip(*(kv.layers for kv in kvs), strict=True)
    merged = (LayerKV(mean([each.keys for each in of]), mean([each.values for each in of])) for of in layers)
    return ChunkKV(kvs[0].token_ids, tuple(merged))
