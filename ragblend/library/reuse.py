"""Answering prompts that come from elsewhere: what in them is known, and what is learned from them."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ragblend.answer import AnswerStream
from ragblend.config import ReuseSettings
from ragblend.errors import LibraryError
from ragblend.library.conversation import Conversation, ConversationReader
from ragblend.library.learning import Learner
from ragblend.library.precompute import Precomputer
from ragblend.library.precomputed import Text
from ragblend.prompt.chat import Piece
from ragblend.store.base import StoreEvents


class Reuse:
    """Reads conversations, follows the streams that answer them, and learns from the finished ones."""

    def __init__(
        self,
        reader: ConversationReader,
        precomputer: Precomputer,
        settings: ReuseSettings,
        events: StoreEvents,
        *,
        read_only: bool,
    ) -> None:
        self._reader = reader
        self.precomputer = precomputer
        self._events = events
        self._learn = "off" if read_only else settings.learn
        self.learner = Learner(_compute_with(precomputer), settings.learn_tokens)
        self._running: weakref.WeakSet[AnswerStream] = weakref.WeakSet()
        # A stream that is left and freed ends wherever Python happens to free it, inside the lock too.
        self._lock = threading.RLock()
        self._closed = False

    def read(self, pieces: Iterable[Piece], opening_ids: tuple[int, ...] = ()) -> Conversation:
        """As ``ConversationReader.read``."""
        return self._reader.read(pieces, opening_ids)

    def watcher(self, conversation: Conversation | None = None) -> Watcher:
        """Follows one stream; what ``conversation`` has and the store has not is learned after it."""
        return Watcher(self, conversation)

    def close(self) -> None:
        """End the streams that are running, with an error, and stop learning."""
        with self._lock:
            self._closed = True
            running = list(self._running)
        for stream in running:
            stream.abort(LibraryError("the library was closed while it answered"))
        self.learner.close()

    def started(self, stream: AnswerStream) -> None:
        with self._lock:
            if self._closed:
                raise LibraryError("the library was closed before it answered: open it again")
            self._running.add(stream)
        self.learner.answer_started()

    def ended(self, stream: AnswerStream) -> None:
        with self._lock:
            self._running.discard(stream)
        self.learner.answer_ended()
        if stream.finished:
            timings = stream.answer.timings
            self._events.answered(timings.load_s + timings.hidden_load_s, timings.recompute_s)

    def learn(self, conversation: Conversation) -> int:
        """Queue what the conversation has and the store has not. Returns the tokens queued."""
        if self._learn == "off":
            return 0
        chunks = [self.precomputer.prepare(text, strip=False) for text in conversation.chunks]
        rest = [self.precomputer.prepare(text) for text in conversation.rest if self._learn == "paragraphs"]
        new = [text for text in (*chunks, *rest) if isinstance(text, Text)]
        return self.learner.submit([*conversation.lost, *new])


@dataclass(frozen=True, slots=True)
class Watcher:
    """A StreamWatcher."""

    reuse: Reuse
    conversation: Conversation | None

    def started(self, stream: AnswerStream) -> None:
        self.reuse.started(stream)

    def answered(self) -> int:
        return self.reuse.learn(self.conversation) if self.conversation else 0

    def ended(self, stream: AnswerStream) -> None:
        self.reuse.ended(stream)


def _compute_with(precomputer: Precomputer) -> Callable[[Text, Callable[[], bool]], None]:
    def compute(text: Text, cancelled: Callable[[], bool]) -> None:
        for _ in precomputer.compute([text], cancelled, learned=True):
            pass

    return compute
