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
from ragblend.blend.blender import blend
from ragblend.blend.policies import policy_named
from ragblend.blend.prefill import prefill_chunks
from ragblend.engine import Engine
from ragblend.kernels.layout import LayerKV
from ragblend.library.embedding import SentenceEmbedder
from ragblend.models.rows import RowRun
from ragblend.prompt import Prompt, Segment
from ragblend.store.base import ChunkKV
from ragblend.store.memory import MemoryStore

Ids = tuple[int, ...]
# A preamble of this many tokens of the collection's own text is about as long as the shipped one.
OWN_TOKENS = 600
# The preamble before all chunks but the prompt's first one, which stands behind the opening and is exact there. A store
# that could serve it would keep every chunk twice.
FIRST_EXACT = "preamble, the first chunk exact"
# What stands between the beginning of a prompt and a chunk when it is prefilled. "mean": KV of two, half way.
WAYS = (
    "preamble",
    FIRST_EXACT,
    "opening",
    "first token",
    "nothing",
    "own text",
    "own text, three times",
    "similar chunks",
    "similar chunks, placed",
    "six similar chunks, placed",
    "preamble, twice",
    "preamble, three times",
    "preamble, six times",
    "preamble, similar chunks",
    "preamble, the chunk before",
    "preamble, three chunks before",
    "preamble, eight chunks before",
    "three chunks before",
    "three chunks before, or preamble",
    "preamble, section of four",
    "preamble, section of eight",
    "section of eight, or preamble",
    "one chunk before, or preamble",
    "two chunks before, or preamble",
    "two to three before, or preamble",
    "two to five before, or preamble",
    "three to six before, or preamble",
    "mean of preamble and own text",
)
# How much of a prompt's beginning stands there, if not all of it.
_OPENING_TOKENS = {"first token": 1, "nothing": 0}
_PLACED = {"similar chunks, placed": 3, "six similar chunks, placed": 6}
# How often the preamble is placed, each time at its own position, without computing it again.
_REPEATED = {"preamble, twice": 2, "preamble, three times": 3, "preamble, six times": 6}


@dataclass(frozen=True)
class Collection:
    """The chunks that questions are asked about, all of them. documents: each document's chunks in order."""

    engine: Engine
    documents: tuple[tuple[Ids, ...], ...]

    @cached_property
    def chunks(self) -> tuple[Ids, ...]:
        return tuple(dict.fromkeys(chunk for document in self.documents for chunk in document))

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

    def before(self, chunk: Ids, count: int) -> list[Ids]:
        """The chunks before it in its document."""
        document = next(document for document in self.documents if chunk in document)
        at = document.index(chunk)
        return list(document[max(0, at - count) : at]) if count else []

    def section(self, chunk: Ids, size: int) -> list[Ids]:
        """The chunks before it in its document, as far as they are of the same ``size`` chunks."""
        document = next(document for document in self.documents if chunk in document)
        return self.before(chunk, document.index(chunk) % size)

    def run(self, chunk: Ids, context: int, kept: int) -> list[Ids]:
        """The chunks before it if ``kept`` chunks are prefilled at a time, behind ``context`` before those."""
        document = next(document for document in self.documents if chunk in document)
        return self.before(chunk, document.index(chunk) % kept + context)

    def others(self, chunk: Ids, tokens: int) -> Ids:
        """``tokens`` tokens of other chunks, the same ones for all but those themselves."""
        shuffled = random.Random(0).sample(self.chunks, len(self.chunks))
        joined = [token for ids in shuffled[:100] if ids != chunk for token in ids]
        return tuple(joined[:tokens])


class Prefills:
    """Stores of a question's chunks, prefilled in one of ``WAYS``; each chunk once a way."""

    def __init__(self, collection: Collection) -> None:
        self._engine, self._collection = collection.engine, collection
        opening = self._engine.template.prefix_ids
        preamble = self._engine.anchor_ids[len(opening) :]
        own, nearest = collection.others, collection.nearest
        before, section, run = collection.before, collection.section, collection.run
        self._contexts: dict[str, Callable[[Ids], Sequence[Ids]]] = {
            "preamble": lambda _: [preamble],
            "opening": lambda _: [()],
            "first token": lambda _: [()],
            "nothing": lambda _: [()],
            "own text": lambda chunk: [own(chunk, OWN_TOKENS)],
            "own text, three times": lambda chunk: [own(chunk, 3 * OWN_TOKENS)],
            "similar chunks": lambda chunk: [_joined(nearest(chunk, 3))],
            "preamble, similar chunks": lambda chunk: [preamble + _joined(nearest(chunk, 3))],
            "preamble, the chunk before": lambda chunk: [preamble + _joined(before(chunk, 1))],
            "preamble, three chunks before": lambda chunk: [preamble + _joined(before(chunk, 3))],
            "preamble, eight chunks before": lambda chunk: [preamble + _joined(before(chunk, 8))],
            "three chunks before": lambda chunk: [_joined(before(chunk, 3))],
            "three chunks before, or preamble": lambda chunk: [_joined(before(chunk, 3)) or preamble],
            "preamble, section of four": lambda chunk: [preamble + _joined(section(chunk, 4))],
            "preamble, section of eight": lambda chunk: [preamble + _joined(section(chunk, 8))],
            "section of eight, or preamble": lambda chunk: [_joined(section(chunk, 8)) or preamble],
            "one chunk before, or preamble": lambda chunk: [_joined(before(chunk, 1)) or preamble],
            "two chunks before, or preamble": lambda chunk: [_joined(before(chunk, 2)) or preamble],
            "two to three before, or preamble": lambda chunk: [_joined(run(chunk, 2, 2)) or preamble],
            "two to five before, or preamble": lambda chunk: [_joined(run(chunk, 2, 4)) or preamble],
            "three to six before, or preamble": lambda chunk: [_joined(run(chunk, 3, 4)) or preamble],
            "mean of preamble and own text": lambda chunk: [preamble, own(chunk, OWN_TOKENS)],
        }
        self._known: dict[tuple[str, Ids], ChunkKV] = {}
        self._anchors: dict[Ids, Anchor] = {}

    def store(self, question: Question, way: str) -> MemoryStore:
        store = MemoryStore(budget_bytes=UNBOUNDED)
        usual, first = ("preamble", "opening") if way == FIRST_EXACT else (way, way)
        for number, chunk in enumerate(question.prompt.chunks):
            store.put(chunk.key or "", self.kv(chunk.token_ids, usual if number else first))
        return store

    def kv(self, chunk: Ids, way: str) -> ChunkKV:
        if (way, chunk) not in self._known and way in _PLACED:
            similar = self._collection.nearest(chunk, _PLACED[way])
            self._known[way, chunk] = self._behind_placed(chunk, [self.kv(ids, "preamble") for ids in similar])
        elif (way, chunk) not in self._known and way in _REPEATED:
            preamble = self.kv(self._engine.anchor_ids[len(self._engine.template.prefix_ids) :], "opening")
            self._known[way, chunk] = self._behind_placed(chunk, [preamble] * _REPEATED[way])
        elif (way, chunk) not in self._known:
            opening = self._engine.template.prefix_ids[: _OPENING_TOKENS.get(way)]
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

    def _behind_placed(self, chunk: Ids, placed: Sequence[ChunkKV]) -> ChunkKV:
        """Behind chunks whose KV is placed and not computed again."""
        engine, store = self._engine, MemoryStore(budget_bytes=UNBOUNDED)
        segments = [Segment("prefix", engine.template.prefix_ids)]
        for number, kv in enumerate(placed):
            store.put(str(number), kv)
            segments.append(Segment("chunk", kv.token_ids, str(number)))
        prompt = Prompt((*segments, Segment("suffix", chunk)))
        none = policy_named("none")
        canvas = blend(engine.adapter, engine.anchor, prompt, policy=none, ratio=0.0, store=store).canvas
        layers = engine.adapter.canonical_rows(canvas, len(prompt) - len(chunk), len(prompt))
        return ChunkKV(chunk, tuple(LayerKV(layer.keys[0].clone(), layer.values[0].clone()) for layer in layers))

    def hidden(self, chunk: Ids, layers: int) -> list[Tensor]:
        """Inputs [tokens, hidden size] of the first ``layers`` layers, as the chunk has them behind the preamble."""
        engine, seen = self._engine, []
        start, stop = len(engine.anchor_ids), len(engine.anchor_ids) + len(chunk)
        canvas = engine.adapter.canvas(stop)
        engine.anchor.place(canvas, start)

        def keep(_: int, hidden: Tensor) -> Tensor:
            seen.append(hidden[0].clone())
            return hidden

        run = RowRun(torch.arange(start, stop), end=stop, on_hidden=keep, stop_before=layers)
        engine.adapter.forward_rows(canvas, torch.tensor(engine.anchor_ids + chunk), run)
        return seen

    def _behind(self, chunk: Ids, anchor_ids: Ids) -> ChunkKV:
        if anchor_ids not in self._anchors:
            self._anchors[anchor_ids] = Anchor(self._engine.adapter, anchor_ids)
        return next(iter(prefill_chunks(self._engine.adapter, self._anchors[anchor_ids], [chunk])))


def _joined(chunks: Sequence[Ids]) -> Ids:
    return tuple(token for chunk in chunks for token in chunk)


def _mean(kvs: Sequence[ChunkKV]) -> ChunkKV:
    """Canonical KV half way between several."""

    def mean(tensors: Sequence[Tensor]) -> Tensor:
        return torch.stack([tensor.float() for tensor in tensors]).mean(dim=0).to(tensors[0].dtype)

    layers = zip(*(kv.layers for kv in kvs), strict=True)
    merged = (LayerKV(mean([each.keys for each in of]), mean([each.values for each in of])) for of in layers)
    return ChunkKV(kvs[0].token_ids, tuple(merged))
