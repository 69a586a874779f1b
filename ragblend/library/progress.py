"""How indexing tells what it is doing."""

from __future__ import annotations

from typing import Protocol


class IndexProgress(Protocol):
    """Called from the thread that indexes. Every document ends in ``document`` or ``skipped``, once."""

    def start(self, total_documents: int) -> None:
        """Before the first document. The total counts those skipped in the search for files too; a repair has 0."""

    def document(self, path: str) -> None:
        """A document is in the library, indexed now or unchanged."""

    def chunk(self, tokens: int) -> None:
        """The KV of one more chunk, of so many tokens, is computed and on the disk."""

    def skipped(self, path: str, reason: str) -> None:
        """A document was left out."""

    def finish(self) -> None:
        """After the last document, and after an error."""


class Silent:
    """Shows nothing."""

    def start(self, total_documents: int) -> None: ...

    def document(self, path: str) -> None: ...

    def chunk(self, tokens: int) -> None: ...

    def skipped(self, path: str, reason: str) -> None: ...

    def finish(self) -> None: ...
