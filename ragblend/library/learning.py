"""Precomputing texts in the background, while no answer is running."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from ragblend.errors import GenerationCancelled, LibraryBusyError, StoreError
from ragblend.library.precomputed import Text
from ragblend.library.report import LearningReport

logger = logging.getLogger(__name__)


class Learner:
    """A bounded queue of texts and a thread that exists only while something waits in it.

    compute: gives one text its KV; asked to stop by the function that it gets, it raises
    GenerationCancelled. What fails is counted and logged, never raised.
    """

    def __init__(self, compute: Callable[[Text, Callable[[], bool]], None], limit_tokens: int) -> None:
        self._compute = compute
        self._limit = limit_tokens
        self._queue: deque[Text] = deque()
        self._answers = 0
        self._closed = False
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()
        self._report = LearningReport()

    @property
    def report(self) -> LearningReport:
        return self._report

    def submit(self, texts: Sequence[Text]) -> int:
        """Queue texts that are not in the queue yet, as far as there is room. Returns their tokens."""
        with self._changed:
            waiting = {text.text for text in self._queue}
            room = self._limit - sum(len(text.token_ids) for text in self._queue)
            before = room
            for text in texts:
                if self._closed or text.text in waiting:
                    continue
                if len(text.token_ids) > room:
                    self._count(dropped=1)
                    continue
                waiting.add(text.text)
                room -= len(text.token_ids)
                self._queue.append(text)
            self._start()
            return before - room

    def answer_started(self) -> None:
        """Hold learning up until the answer has ended; what is being computed is begun anew then."""
        with self._changed:
            self._answers += 1

    def answer_ended(self) -> None:
        with self._changed:
            self._answers -= 1
            self._start()
            self._changed.notify_all()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether nothing waits any more, after at most ``timeout_s`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue, timeout_s)

    def close(self) -> None:
        """Stop at the next layer, forget what waits, and wait for the thread."""
        with self._changed:
            self._closed = True
            self._queue.clear()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _start(self) -> None:
        if self._queue and not self._answers and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ragblend-learning", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while (text := self._next()) is not None:
            try:
                self._compute(text, self._must_stop)
                done = LearningReport(learned=1)
            except GenerationCancelled:
                continue
            except LibraryBusyError as error:
                logger.info("a text was not learned: %s", error)
                done = LearningReport(dropped=1)
            except Exception as error:  # whatever goes wrong here must not end the application
                logger.warning("a text could not be learned: %s", error)
                done = LearningReport(failed=1, error=str(error))
                if isinstance(error, StoreError):
                    self._drop_all_but_first()
            with self._changed:
                self._count(done.learned, done.dropped, done.failed, done.error)
                if self._queue:
                    self._queue.popleft()
                self._changed.notify_all()

    def _next(self) -> Text | None:
        """The text to compute, once no answer is running; None, and no thread any more, if there is none."""
        with self._changed:
            self._changed.wait_for(lambda: not self._answers or self._closed)
            if self._closed or not self._queue:
                self._thread = None
                return None
            return self._queue[0]

    def _must_stop(self) -> bool:
        return self._closed or self._answers > 0

    def _drop_all_but_first(self) -> None:
        """A store that failed once (a full disk) would fail for the others too."""
        with self._changed:
            while len(self._queue) > 1:
                self._queue.pop()
                self._count(dropped=1)

    def _count(self, learned: int = 0, dropped: int = 0, failed: int = 0, error: str = "") -> None:
        now = self._report
        self._report = replace(
            now,
            learned=now.learned + learned,
            dropped=now.dropped + dropped,
            failed=now.failed + failed,
            error=error or now.error,
        )
