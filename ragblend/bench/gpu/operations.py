"""The kernels' operations in the sizes of a request: what runs, what it must equal, what it moves and computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ragblend.bench.gpu.shapes import ModelShape
from ragblend.kernels import ops
from ragblend.kernels.implementation import Implementation
from ragblend.kernels.layout import Attention, Codec, LayerKV
from ragblend.kernels.quantise import quantise

CHUNK_TOKENS = 512
SUFFIX_TOKENS = 64
CODECS: tuple[Codec, ...] = ("raw", "int8", "fp8", "int4")
_CHECKED_ROWS = 64  # of attention's result; each row is by itself, and the oracle keeps rows x keys in memory


@dataclass(frozen=True)
class Operation:
    """One operation on tensors in its sizes.

    run(impl): does it and returns the result. check(result): largest difference to the oracle, and what is
    allowed. bytes: read and written at least. flops: useful ones, none for what only moves data.
    """

    name: str
    run: Callable[[Implementation], Tensor]
    check: Callable[[Tensor], tuple[float, float]]
    bytes: int
    flops: int = 0


@dataclass(frozen=True)
class Layer:
    """One layer of a request on a canvas of ``context`` positions: the tensors that its operations share."""

    shape: ModelShape
    context: int
    ratio: float
    dtype: torch.dtype
    device: torch.device

    def normal(self, *sizes: int) -> Tensor:
        generator = torch.Generator(self.device).manual_seed(sum(sizes))
        return torch.randn(*sizes, generator=generator, device=self.device, dtype=torch.float32).to(self.dtype)

    @property
    def tolerance(self) -> float:
        """Of numbers about 1: sums of 16-bit products rounded once, or fp32 in another order."""
        return 1e-4 if self.dtype == torch.float32 else 2e-2

    def rows(self) -> Tensor:
        """The suffix, and every so many-th token before it."""
        suffix = min(SUFFIX_TOKENS, self.context)
        step = max(1, round(1 / self.ratio)) if self.ratio else self.context
        chosen = torch.arange(0, self.context - suffix, step, device=self.device)
        return torch.cat([chosen, torch.arange(self.context - suffix, self.context, device=self.device)])


def operations(layer: Layer) -> Iterator[Operation]:
    """Every operation, one after the other, so that the tensors of one are gone before the next."""
    for codec in CODECS:
        yield placing(layer, codec)
    yield writing(layer)
    yield deviating(layer)
    rows = layer.rows()
    yield attending(layer, "attend_rows, scattered", rows)
    yield attending(layer, "attend_rows, one row", rows[-1:])
    yield attending(layer, "attend_rows, all rows", torch.arange(layer.context, device=layer.device))
    yield receiving(layer)


def placing(layer: Layer, codec: Codec) -> Operation:
    shape = layer.shape
    kv_heads, head_dim, pairs = shape.kv_heads, shape.head_dim, shape.head_dim // 2
    chunks: list[LayerKV] = []
    for start in range(0, layer.context, CHUNK_TOKENS):
        tokens = min(CHUNK_TOKENS, layer.context - start)
        keys, values = layer.normal(kv_heads, tokens, head_dim), layer.normal(kv_heads, tokens, head_dim)
        chunks.append(quantise(keys, values, codec))
    starts = list(range(0, layer.context, CHUNK_TOKENS))
    angles = torch.arange(layer.context, device=layer.device)[:, None] / torch.logspace(
        0, 4, pairs, device=layer.device
    )
    cos, sin = angles.cos(), angles.sin()
    canvas = torch.empty(2, kv_heads, layer.context, head_dim, dtype=layer.dtype, device=layer.device)

    def place(target: Tensor, impl: Implementation) -> Tensor:
        ops.place_chunks(chunks, starts, target[0], target[1], cos, sin, 0, "half", impl=impl)
        return target

    def check(result: Tensor) -> tuple[float, float]:
        return _difference(result, place(torch.empty_like(result), "reference")), 4 * layer.tolerance

    stored = sum(chunk.nbytes for chunk in chunks)
    name = f"place_chunks, {codec}"
    return Operation(name, lambda impl: place(canvas, impl), check, stored + canvas.nbytes + cos.nbytes + sin.nbytes)


def writing(layer: Layer) -> Operation:
    shape, rows = layer.shape, layer.rows()
    canvas = layer.normal(2, 1, shape.kv_heads, layer.context, shape.head_dim)
    fresh = layer.normal(2, 1, len(rows), shape.kv_heads, shape.head_dim).transpose(2, 3)

    def write(impl: Implementation) -> Tensor:
        ops.write_rows(fresh[0], fresh[1], rows, canvas[0], canvas[1], impl=impl)
        return canvas

    def check(result: Tensor) -> tuple[float, float]:
        return _difference(result[:, :, :, rows], fresh), 0.0

    return Operation("write_rows", write, check, 2 * fresh.numel() * fresh.element_size() + rows.nbytes)


def deviating(layer: Layer) -> Operation:
    shape = layer.shape
    rows = torch.arange(layer.context, device=layer.device)
    stored = layer.normal(shape.kv_heads, layer.context, shape.head_dim)
    fresh = layer.normal(shape.kv_heads + 1, layer.context, shape.head_dim)[1:]

    def check(result: Tensor) -> tuple[float, float]:
        expected = ops.deviation(fresh, stored, rows, impl="reference")
        return _difference(result, expected), 1e-4 * float(expected.max())

    return Operation(
        "deviation",
        lambda impl: ops.deviation(fresh, stored, rows, impl=impl),
        check,
        fresh.nbytes + stored.nbytes + rows.nbytes + 4 * layer.context,
    )


def attending(layer: Layer, name: str, rows: Tensor) -> Operation:
    shape = layer.shape
    attention = Attention(scaling=shape.head_dim**-0.5)
    query, keys, values = _heads(layer, len(rows))
    some = torch.linspace(0, len(rows) - 1, min(_CHECKED_ROWS, len(rows)), device=layer.device).long()

    def check(result: Tensor) -> tuple[float, float]:
        expected = ops.attend_rows(query[:, :, some], keys, values, rows[some], attention, impl="reference")
        return _difference(result[:, :, some], expected), layer.tolerance

    seen = int((rows + 1).sum())
    return Operation(
        name,
        lambda impl: ops.attend_rows(query, keys, values, rows, attention, impl=impl),
        check,
        2 * query.nbytes + keys.nbytes + values.nbytes,
        4 * shape.heads * shape.head_dim * seen,
    )


def receiving(layer: Layer) -> Operation:
    rows = layer.rows()[-SUFFIX_TOKENS:]
    attention = Attention(scaling=layer.shape.head_dim**-0.5)
    query, keys, _ = _heads(layer, len(rows))

    def check(result: Tensor) -> tuple[float, float]:
        expected = ops.attention_received(query, keys, rows, attention, impl="reference")
        return _difference(result, expected), layer.tolerance * float(expected.max())

    return Operation(
        "attention_received",
        lambda impl: ops.attention_received(query, keys, rows, attention, impl=impl),
        check,
        query.nbytes + 2 * keys.nbytes + 4 * layer.context,
        4 * layer.shape.heads * layer.shape.head_dim * int((rows + 1).sum()),
    )


def _heads(layer: Layer, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries of ``rows`` rows, and the canvas' keys and values."""
    shape = layer.shape
    query = layer.normal(1, shape.heads, rows, shape.head_dim)
    keys = layer.normal(1, shape.kv_heads, layer.context, shape.head_dim)
    return query, keys, layer.normal(2, shape.kv_heads, layer.context, shape.head_dim)[1:]


def _difference(ours: Tensor, expected: Tensor) -> float:
    """NaN where one of them is not a number, which no tolerance allows."""
    return float((ours.float() - expected.float()).abs().max())
