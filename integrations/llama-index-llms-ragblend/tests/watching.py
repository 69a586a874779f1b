"""What LlamaIndex's own instrumentation saw of the LLM."""

from __future__ import annotations

from typing import Any

from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.instrumentation.events import BaseEvent

from llama_index.llms.ragblend import ReuseLog


class Watcher(ReuseLog):
    """Keeps every event too."""

    _events: list[BaseEvent] = PrivateAttr(default_factory=list)

    def handle(self, event: BaseEvent, **kwargs: Any) -> None:
        super().handle(event, **kwargs)
        self._events.append(event)

    def __enter__(self) -> Watcher:
        super().__enter__()
        return self

    @property
    def events(self) -> list[BaseEvent]:
        return self._events

    @property
    def names(self) -> list[str]:
        return [event.class_name() for event in self._events]
