"""What a conversation is made of: messages of text and of documents passed as such."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ragblend.config import require
from ragblend.field_types import is_finite_number

ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class Passage:
    """A document, or a part of one, passed as such: a chunk of its own, found without a search.

    title: stands in a line above the text if there is one. document, chunk and score say where the
    passage comes from; it is one of the answer's sources. score: the higher the better; of too many passages the
    lowest are left out. Raises ConfigError unless there is text, and for a score that is no finite number.
    """

    text: str
    title: str = ""
    document: str = ""
    chunk: int = 0
    score: float = 0.0

    def __post_init__(self) -> None:
        name = self.title or self.document
        where = f" ({name})" if name else ""
        require(isinstance(self.text, str), f"a passage's text must be a string, got {type(self.text).__name__}{where}")
        require(bool(self.text.strip()), f"a passage has no text{where}: leave it out")
        known = is_finite_number(self.score)
        require(known, f"a passage's score must be a finite number, got {self.score!r}{where}")


TIMES_TO_LIVE = {"5m": 300.0, "1h": 3600.0}


@dataclass(frozen=True, slots=True)
class CachePoint:
    """Everything up to here is to be kept for later prompts, until nobody has used it for ``ttl``: 5m or 1h."""

    ttl: str = "5m"

    def __post_init__(self) -> None:
        known = self.ttl in TIMES_TO_LIVE
        require(known, f"a cache point's ttl must be one of {', '.join(TIMES_TO_LIVE)}, got {self.ttl!r}")

    @classmethod
    def of(cls, cache_control: Mapping[str, Any]) -> CachePoint:
        """From the hosted APIs' form: ``{"type": "ephemeral", "ttl": "1h"}``. Raises ConfigError."""
        require(
            isinstance(cache_control, Mapping) and cache_control.get("type") == "ephemeral",
            f'cache_control must be {{"type": "ephemeral"}}, with "ttl" if need be, got {cache_control!r}',
        )
        unknown = sorted(map(str, cache_control.keys() - {"type", "ttl"}))
        require(not unknown, f"cache_control has type and ttl, but not {', '.join(unknown)}")
        return cls(cache_control.get("ttl", "5m"))

    @property
    def ttl_s(self) -> float:
        return TIMES_TO_LIVE[self.ttl]


Part = str | Passage | CachePoint


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation. Raises ConfigError for another role or content.

    content: text, which is searched for known texts, passages, and cache points. extra: what else the
    chat template gets of this message (tool_calls, tool_call_id, name).
    """

    role: str
    content: tuple[Part, ...]
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(self.role in ROLES, f"a message's role must be one of {', '.join(ROLES)}, got {self.role!r}")
        listed = isinstance(self.content, tuple)
        require(listed, f"a message's content must be a tuple of text and passages, got {type(self.content).__name__}")
        for part in self.content:
            known = isinstance(part, str | Passage | CachePoint)
            require(known, f"a message's content is text and passages, got {type(part).__name__}")
