"""What engines and agents reused, without a change to them."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events import BaseEvent
from llama_index.core.instrumentation.events.llm import LLMChatEndEvent, LLMCompletionEndEvent
from llama_index_instrumentation import get_dispatcher


class ReuseLog(BaseEventHandler):
    """An event handler that keeps ``raw`` of every finished answer: usage, hits, misses, timings.

    ```python
    with ReuseLog() as log:
        query_engine.query("How long is the warranty?")
    print(log.answers[-1]["matched_tokens"])
    ```

    Outside ``with``, add it to a dispatcher of LlamaIndex's instrumentation like any other handler.
    """

    _answers: list[dict[str, Any]] = PrivateAttr(default_factory=list)

    @classmethod
    def class_name(cls) -> str:
        return "ReuseLog"

    @property
    def answers(self) -> list[dict[str, Any]]:
        """``raw`` of each answer by a RagBlend, in the order in which they were finished."""
        return self._answers

    def handle(self, event: BaseEvent, **kwargs: Any) -> None:
        if isinstance(event, LLMChatEndEvent | LLMCompletionEndEvent) and event.response is not None:
            raw = event.response.raw
            if isinstance(raw, dict) and "matched_tokens" in raw:
                self._answers.append(raw)

    def __enter__(self) -> ReuseLog:
        get_dispatcher().add_event_handler(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        get_dispatcher().event_handlers.remove(self)
