"""Reading ahead of who needs what is read, on one thread and with bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

Read = TypeVar("Read")


class ReadAhead(Generic[Read]):
    """Calls ``read`` for one layer after another on a thread of its own, which begins at once.

    At most ``window`` layers are being read or wait to be taken: the thread goes on when one is taken. Close it
    before anything is let go that ``read`` works on.
    """

    def __init__(self, read: Callable[[int], Read], layers: Iterable[int], window: int) -> None:
        self._read = read
        self._layers = iter(layers)
        self._thread = ThreadPoolExecutor(1, "ragblend-loader")
        self._coming: dict[int, Future[Read]] = {}
        for _ in range(window):
            self._begin_next()

    def take(self, layer: int) -> Read:
        """What ``read`` returned for a layer that nobody has taken yet; waits for it. Raises what it raised.

        A layer out of turn is waited for as well, and those before it are kept.
        """
        while layer not in self._coming and self._begin_next():
            pass
        taken = self._coming.pop(layer).result()  # the future in no variable: an error's traceback would keep it
        self._begin_next()
        return taken

    def close(self) -> None:
        """Begin nothing more, and wait for what is being read. Closing twice is no error."""
        self._thread.shutdown(cancel_futures=True)
        self._coming.clear()

    def _begin_next(self) -> bool:
        """Whether there was a layer to begin."""
        layer = next(self._layers, None)
        if layer is None:
            return False
        self._coming[layer] = self._thread.submit(self._read, layer)
        return True
