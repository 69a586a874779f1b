"""Loading: stored layers go to their positions on the canvas, ahead of what is computed where that saves time."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from ragblend.blend.lane import lane_on
from ragblend.blend.plan import Plan
from ragblend.blend.stored import StoredLayers
from ragblend.errors import GenerationCancelled
from ragblend.models.adapter import DecoderAdapter
from ragblend.models.canvas import Canvas


class Loader:
    """Places a plan's chunks on a canvas, each layer once and before it is computed.

    Which thread does what of it depends on the device and on how fast the store is (see ``lane``). Close the loader
    before the plan and the canvas are let go: no thread touches them afterwards.

    waited: seconds that a request spent on loading or on waiting for it.
    """

    def __init__(
        self, adapter: DecoderAdapter, plan: Plan, canvas: Canvas, cancelled: Callable[[], bool] = lambda: False
    ) -> None:
        self._cancelled = cancelled
        self._layers = StoredLayers(adapter, plan, canvas)
        self._to_bring = set(range(self._layers.count))
        self._lane = lane_on(adapter.device, self._layers)
        self.layer_count = adapter.layer_count
        self.waited = 0.0

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def place(self, layer: int) -> None:
        """Make sure that ``layer`` is placed. Raises LostChunkError, GenerationCancelled."""
        if self._cancelled():
            raise GenerationCancelled("the request was cancelled before its first token")
        if layer in self._to_bring:
            began = time.perf_counter()
            self._lane.bring(layer)
            self._to_bring.discard(layer)
            self.waited += time.perf_counter() - began

    @property
    def seconds(self) -> float:
        """What loading took so far, whoever did it."""
        layers = self._layers
        return (sum(layers.read_s.values()) + sum(layers.place_s.values())) / self._lane.threads

    def expected_s(self) -> float:
        """Seconds that reading will take, as the faster of the first two layers shows. Raises as ``place`` does.

        To be asked before the first layer is placed. One layer alone may have met the disk's first turn.
        """
        layers = sorted(self._to_bring)
        for layer in layers[:2]:
            self.place(layer)
        fastest = min((self._layers.read_s[layer] for layer in layers[:2]), default=0.0)
        return fastest * len(layers) / self._lane.threads

    def close(self) -> None:
        """Stop loading, and wait until no thread works on it any more. Closing twice is no error."""
        self._layers.stop()
        self._lane.close()
