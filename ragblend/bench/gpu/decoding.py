"""Seconds a token while decoding on a long canvas, appended and as a CUDA graph, on random weights."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ragblend.bench.gpu.clock import Ceilings, seconds_of
from ragblend.bench.gpu.shapes import ModelShape
from ragblend.models.adapter import DecoderAdapter
from ragblend.models.canvas import Canvas
from ragblend.models.steps import GraphStep, Step, steps_on

_TOKENS = 24
_WARM_UP = 3  # compiling, capturing, and the first replay


@dataclass(frozen=True, slots=True)
class DecodingRow:
    """Decoding behind ``context`` positions. appended_s, graph_s: seconds a token, the median.

    graph_s is None where no graph can be captured. max_abs_diff: between the logits of the two, along the same
    tokens. bound_s: the weights and the canvas read once, at the rate of a copy. of_bound: the faster one by it.
    """

    model: str
    context: int
    appended_s: float
    graph_s: float | None
    max_abs_diff: float | None
    bound_s: float
    of_bound: float


@torch.inference_mode()
def measure(adapter: DecoderAdapter, shape: ModelShape, context: int, ceilings: Ceilings) -> DecodingRow:
    """Decode a few dozen tokens on a canvas of random numbers, once in each form."""
    appended = steps_on(adapter, _canvas(adapter, context), cuda_graph=False)
    appended_s, expected = _decode(adapter, appended)
    graph_s, difference = None, None
    graph = steps_on(adapter, _canvas(adapter, context), cuda_graph=True)
    if isinstance(graph, GraphStep):
        seconds, found = _decode(adapter, graph)
        if graph.captured:
            graph_s, difference = seconds, float((found - expected).abs().max())
    read_weights = shape.weight_bytes - 2 * shape.vocabulary * shape.hidden  # of the embeddings only one row
    bound_s = (read_weights + shape.kv_bytes(context, adapter.dtype.itemsize)) / ceilings.copy_bytes_s
    fastest = appended_s if graph_s is None else min(appended_s, graph_s)
    return DecodingRow(shape.name, context, appended_s, graph_s, difference, bound_s, fastest / bound_s)


def _decode(adapter: DecoderAdapter, step: Step) -> tuple[float, Tensor]:
    """Median seconds a token, and all logits, [tokens, vocabulary] fp32."""
    seconds: list[float] = []
    logits: list[Tensor] = []

    def decode(token: Tensor) -> None:
        logits.append(step(token)[0].float().clone())

    for number in range(_WARM_UP + _TOKENS):
        token = torch.tensor([[number]], device=adapter.device)
        seconds.append(seconds_of(adapter.device, partial(decode, token)))
    return statistics.median(seconds[_WARM_UP:]), torch.stack(logits)


def _canvas(adapter: DecoderAdapter, context: int) -> Canvas:
    """The same random numbers every time."""
    canvas = adapter.canvas(context + _WARM_UP + _TOKENS)
    generator = torch.Generator(adapter.device).manual_seed(0)
    for layer in range(adapter.layer_count):
        for buffer in (canvas.keys(layer), canvas.values(layer)):
            buffer.normal_(generator=generator)
    canvas.set_length(context)
    return canvas
