"""One forward pass over scattered rows of a canvas: which rows, and who watches it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from ragblend.kernels.layout import Attention


@dataclass(eq=False)
class RowRun:
    """A pass over ``rows`` ([n] int64, sorted positions below ``end``).

    narrow_before: before this layer the pass goes on with only ``narrow()``'s rows (positions, a
        sorted subset of the current ones). The last row must stay: it gives the logits. ``narrow`` may set it again.
    stop_before: the pass ends before this layer, without logits.
    on_layer(layer): called before each layer; what the layer reads must be placed when it returns.
    on_hidden(layer, hidden): sees each layer's input [1, n, hidden_size] and returns the one to use.
    on_write(layer, rows, keys, values, stored_keys, stored_values): called before fresh
        [1, kv_heads, n, head_dim] replace what the canvas holds at the rows.
    on_attend(layer, rows, query, keys, attention): called with a layer's rotated queries
        [1, heads, n, head_dim] and all keys, before it attends.
    """

    rows: Tensor
    end: int
    narrow_before: int | None = None
    narrow: Callable[[], Tensor] | None = None
    stop_before: int | None = None
    on_layer: Callable[[int], None] | None = None
    on_hidden: Callable[[int, Tensor], Tensor] | None = None
    on_write: Callable[[int, Tensor, Tensor, Tensor, Tensor, Tensor], None] | None = None
    on_attend: Callable[[int, Tensor, Tensor, Tensor, Attention], None] | None = None
    kept: Tensor | None = None

    def written(self, layer: int, keys: Tensor, values: Tensor, stored_keys: Tensor, stored_values: Tensor) -> None:
        if self.on_write is not None:
            self.on_write(layer, self.rows, keys, values, stored_keys, stored_values)
