"""The canvas: one request's K/V buffers, and the cache object that transformers computes on.

Chunks are placed into it, recomputed rows are written in place, and decoding appends to it. It
never moves: attention reads a view of the buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from ragblend.kernels import ops
from ragblend.kernels.implementation import Implementation
from ragblend.kernels.layout import LayerKV
from ragblend.models.rows import RowRun
from ragblend.store.base import ChunkKV


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Shape of one layer's cache: kv_heads x head_dim."""

    kv_heads: int
    head_dim: int


class CanvasLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """One layer's buffers, [batch, kv_heads, capacity, head_dim] each."""

    is_compileable = False
    is_sliding = False
    keys: Tensor
    values: Tensor

    def __init__(self, keys: Tensor, values: Tensor, index: int, canvas: Canvas) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keys = keys
        self.values = values
        self.index = index
        self.canvas = canvas
        self.length = 0
        self.dtype, self.device = keys.dtype, keys.device
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the buffers exist from the start."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write fresh rows and return views of all keys and values known so far.

        During a pass (``Canvas.run``) they go to its rows' positions; otherwise they are appended.
        """
        run = self.canvas.run
        if run is not None:
            run.written(self.index, key_states, value_states, self.keys, self.values)
            ops.write_rows(key_states, value_states, run.rows, self.keys, self.values, impl=self.canvas.kernels)
            self.length = max(self.length, run.end)
        else:
            start, self.length = self.length, self.length + key_states.shape[2]
            self.keys[:, :, start : self.length] = key_states
            self.values[:, :, start : self.length] = value_states
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length  # the name before transformers 5.2x

    def crop(self, tokens_to_remove: int) -> None:
        self.length = max(0, self.length - abs(tokens_to_remove))


class Canvas(Cache):
    """Preallocated buffers of every layer, owned by one request.

    capacity: how many positions there is room for. batch is 1 for a request; chunks are prefilled several at a time
    on a canvas of their own. kernels: the form in which rows are written.
    """

    def __init__(
        self,
        shapes: Sequence[LayerShape],
        capacity: int,
        *,
        dtype: torch.dtype,
        device: torch.device | str,
        batch: int = 1,
        kernels: Implementation = "auto",
    ) -> None:
        def buffer(shape: LayerShape) -> Tensor:
            return torch.empty(batch, shape.kv_heads, capacity, shape.head_dim, dtype=dtype, device=device)

        layers = [CanvasLayer(buffer(shape), buffer(shape), index, self) for index, shape in enumerate(shapes)]
        super().__init__(layers=list(layers))
        self.canvas_layers = layers
        self.capacity = capacity
        self.kernels = kernels
        self.run: RowRun | None = None

    def keys(self, layer: int) -> Tensor:
        """The whole key buffer of a layer, [batch, kv_heads, capacity, head_dim]."""
        return self.canvas_layers[layer].keys

    def values(self, layer: int) -> Tensor:
        """The whole value buffer of a layer, [batch, kv_heads, capacity, head_dim]."""
        return self.canvas_layers[layer].values

    def take(self, start: int, token_ids: tuple[int, ...]) -> ChunkKV:
        """A copy on the CPU of the rows from ``start`` on, one for each id, of the first batch entry.

        Keys are as they stand: turned to their positions.
        """
        rows = slice(start, start + len(token_ids))
        layers = (
            LayerKV(layer.keys, layer.values).map(lambda part: part[0, :, rows].to("cpu", copy=True).contiguous())
            for layer in self.canvas_layers
        )
        return ChunkKV(token_ids, tuple(layers))

    def set_length(self, length: int) -> None:
        """Declare that positions 0..length-1 hold KV in every layer."""
        for layer in self.canvas_layers:
            layer.length = length
