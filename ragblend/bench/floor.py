"""The least that computing some rows of a prompt can take: what a blended request is measured against."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ragblend.bench.baseline import transformers_attention, transformers_prefill
from ragblend.bench.gpu.clock import seconds_of
from ragblend.blend.blender import Blended
from ragblend.engine import Engine
from ragblend.kernels import ops
from ragblend.kernels.layout import Attention
from ragblend.kernels.reference import visible
from ragblend.models.rows import RowRun


class Floor:
    """Of one blended prompt, on its canvas.

    A pass over n rows costs at least a plain forward over n tokens, by transformers or by us, and the rows'
    attention over all keys before them. Selecting the rows and loading what they attend to come on top.
    """

    def __init__(self, engine: Engine, token_ids: tuple[int, ...], blended: Blended) -> None:
        self._adapter = engine.adapter
        self._token_ids = torch.tensor(token_ids, device=engine.adapter.device)
        self._canvas = blended.canvas
        self._rows = blended.rows

    def seconds(self) -> float:
        return self._plain_forward() + self._attention()

    def _plain_forward(self) -> float:
        ids = self._token_ids[: self._rows.numel()]
        with transformers_attention(self._adapter):
            theirs = transformers_prefill(self._adapter, ids.tolist()).seconds
        canvas = self._adapter.canvas(ids.numel())
        return min(theirs, self._timed(lambda: self._adapter.append(canvas, ids[None])))

    def _attention(self) -> float:
        """Seconds of all layers' attention, each by the faster of our kernel and torch's with a mask made before."""
        masks: dict[int | None, Tensor] = {}
        seconds = 0.0

        def attend(_: int, rows: Tensor, query: Tensor, keys: Tensor, attention: Attention) -> None:
            nonlocal seconds
            ours = partial(ops.attend_rows, query, keys, keys, rows, attention, impl=self._adapter.kernels)
            fastest = self._timed(ours)
            if attention.softcap is None and attention.sinks is None:
                if attention.window not in masks:
                    masks[attention.window] = visible(rows, keys.shape[2], attention.window)
                theirs = partial(
                    scaled_dot_product_attention,
                    *(query, keys, keys),
                    attn_mask=masks[attention.window],
                    scale=attention.scaling,
                    enable_gqa=query.shape[1] != keys.shape[1],
                )
                fastest = min(fastest, self._timed(theirs))
            seconds += fastest

        run = RowRun(self._rows, end=self._token_ids.numel(), on_attend=attend)
        self._adapter.forward_rows(self._canvas, self._token_ids, run)
        return seconds

    def _timed(self, work: Callable[[], object]) -> float:
        return seconds_of(self._adapter.device, work)
