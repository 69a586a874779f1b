"""Decoding one token at a time on a canvas: appended each time anew, or one CUDA graph replayed."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor

from ragblend.errors import ModelError
from ragblend.models.adapter import DecoderAdapter
from ragblend.models.canvas import Canvas
from ragblend.models.rows import RowRun

log = logging.getLogger(__name__)

# Puts a token, [1, 1] int64, behind what the canvas holds, and returns the logits after it, [1, vocabulary].
Step = Callable[[Tensor], Tensor]


def steps_on(adapter: DecoderAdapter, canvas: Canvas, cuda_graph: bool) -> Step:
    """How to decode on ``canvas``. ``cuda_graph`` is passed over where there can be none."""
    if cuda_graph and adapter.device.type == "cuda" and adapter.kernels == "triton":
        return GraphStep(adapter, canvas)
    return lambda token: adapter.append(canvas, token)[:, -1]


class GraphStep:
    """A step that is launched as a whole: with few rows, launching kernels one by one takes longer than they do.

    Nothing in it may depend on the host. So it is a pass over one row of the whole canvas, whose token and position
    are read from the device's memory; attention ends at that position. The first step runs as it is, which compiles
    what has to be compiled, and is captured then. If it cannot be (a model may look at its activations to decide
    what to compute), decoding goes on as usual. Logits are overwritten by the next step.
    """

    def __init__(self, adapter: DecoderAdapter, canvas: Canvas) -> None:
        self._adapter = adapter
        self._canvas = canvas
        self._token_ids = torch.zeros(canvas.capacity, dtype=torch.int64, device=adapter.device)
        self._position = torch.zeros(1, dtype=torch.int64, device=adapter.device)
        self._run = RowRun(self._position, end=canvas.capacity)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._graph_logits = torch.empty(0)
        self._refused = False

    @property
    def captured(self) -> bool:
        """Whether there is a graph, which replays from the second step on."""
        return self._graph is not None

    @torch.inference_mode()
    def __call__(self, token: Tensor) -> Tensor:
        if self._refused:
            return self._adapter.append(self._canvas, token)[:, -1]
        position = self._canvas.get_seq_length()
        self._position.fill_(position)
        self._token_ids[position] = token[0, 0]
        if self._graph is None:
            logits = self._compute()
            self._capture()
        else:
            self._graph.replay()
            logits = self._graph_logits
        self._canvas.set_length(position + 1)
        return logits[None]

    def _compute(self) -> Tensor:
        logits = self._adapter.forward_rows(self._canvas, self._token_ids, self._run)
        if logits is None:
            raise ModelError("a decoding step ended before the last layer")
        return logits

    def _capture(self) -> None:
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other requests may go on meanwhile
                self._graph_logits = self._compute()
        except RuntimeError as error:
            log.warning("a decoding step cannot be captured as a CUDA graph (%s)", error)
            self._refused = True
        else:
            self._graph = graph
