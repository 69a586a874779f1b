"""Seconds a token after the first: ours on the canvas, and transformers' own generate on its caches.

    python tests/benchmarks/decoding.py [--contexts 64,1024,4096] [--tokens 32] [--repeats 5] [--model M]

Same weights, dtype and threads, greedy; transformers on a model of its own, as it loads it. Every round runs all three
once, so that what disturbs the machine meets all alike; the figures are medians over the rounds. ``attention`` is what
attending a single row costs in all layers, so the growth of ``ragblend`` with the context can be compared with it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.generation.streamers import BaseStreamer

from ragblend import Engine, Prompt, Segment
from ragblend.bench.data import handbook_texts
from ragblend.config import BlendSettings, GenerationSettings
from ragblend.kernels import ops
from ragblend.kernels.layout import Attention
from ragblend.models.load import load_model


class Clock(BaseStreamer):  # type: ignore[misc]
    """When each token came; generate hands the prompt over first."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: object) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


def per_token(times: Sequence[float]) -> float:
    """Median seconds between tokens, the first one (the prefill's) left out."""
    return statistics.median(later - earlier for earlier, later in pairwise(times))


def ours(engine: Engine, ids: Sequence[int], tokens: int) -> float:
    settings = GenerationSettings(max_tokens=tokens)
    prompt = Prompt((Segment("suffix", tuple(ids)),))
    stream: Iterator[Any] = engine.stream(prompt, generation=settings, blend=BlendSettings("full", 1.0), prefixes="off")
    return per_token([time.perf_counter() for _ in stream])


def theirs(model: PreTrainedModel, ids: Sequence[int], tokens: int, cache: str) -> float:
    clock = Clock()
    given = torch.tensor([list(ids)])
    with torch.inference_mode():
        model.generate(
            given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=False,
            cache_implementation=cache,
            streamer=clock,
        )
    return per_token(clock.times[1:])


@torch.inference_mode()
def attention_of_one_row(engine: Engine, context: int) -> float:
    """Median seconds of one attended row in every layer."""
    adapter = engine.adapter
    canvas = adapter.canvas(context)
    heads = adapter.model.config.num_attention_heads
    rows = torch.tensor([context - 1])
    seconds = []
    for _ in range(9):
        began = time.perf_counter()
        for layer, shape in enumerate(adapter.shapes):
            query = torch.zeros(1, heads, 1, shape.head_dim, dtype=adapter.dtype)
            keys, values = canvas.keys(layer), canvas.values(layer)
            ops.attend_rows(query, keys, values, rows, Attention(shape.head_dim**-0.5), impl=adapter.kernels)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--contexts", default="64,1024,4096")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--model")
    options = parser.parse_args()
    engine = Engine(options.model)
    plain = load_model(options.model).model
    text = [token for document in handbook_texts() for token in engine.template.text_ids(document)]
    print("context  ragblend   static     dynamic    static/ragblend  attention   (ms a token)")
    for context in map(int, options.contexts.split(",")):
        ids = text[:context]
        rounds = []
        for _ in range(options.repeats):
            own = ours(engine, ids, options.tokens)
            rounds.append((own, *(theirs(plain, ids, options.tokens, cache) for cache in ("static", "dynamic"))))
        own, static, dynamic = (statistics.median(column) * 1e3 for column in zip(*rounds, strict=True))
        ratio = statistics.median(other / mine for mine, other, _ in rounds)
        alone = attention_of_one_row(engine, context) * 1e3
        print(f"{context:>7,}  {own:8.2f}  {static:8.2f}   {dynamic:8.2f}   {ratio:8.2f}x        {alone:8.2f}")


if __name__ == "__main__":
    main()
