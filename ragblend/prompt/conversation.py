"""What a conversation is made of: messages of text and of documents passed as such."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ragblend.config import require

ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class Passage:
    """A document, or a part of one, passed as such: a chunk of its own, found without a search.

    title: stands in a line above the text if there is one. document, chunk and score say where the
    passage comes from; it is one of the answer's sources. Raises ConfigError unless there is text.
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


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation. Raises ConfigError for another role or content.

    content: text, which is searched for known texts, and passages. extra: what else the chat template
    gets of this message (tool_calls, tool_call_id, name).
    """

    role: str
    content: tuple[str | Passage, ...]
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(self.role in ROLES, f"a message's role must be one of {', '.join(ROLES)}, got {self.role!r}")
        listed = isinstance(self.content, tuple)
        require(listed, f"a message's content must be a tuple of text and passages, got {type(self.content).__name__}")
        for part in self.content:
            known = isinstance(part, str | Passage)
            require(known, f"a message's content is text and passages, got {type(part).__name__}")
