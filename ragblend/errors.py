"""Every error that ragblend raises on purpose.

::

    RagblendError                   exit status 1
    ├── UsageError                  exit status 2: what was asked cannot be done, on any machine
    │   ├── ConfigError             a setting outside its range (also a ValueError)
    │   ├── PathNotFoundError       a path, library or model that is not there
    │   ├── CacheHandleError        a named cache that is gone, or another namespace's or model's
    │   └── ContextOverflowError    the prompt does not fit the model's context
    ├── ModelError                  a model that cannot be loaded
    │   └── UnsupportedModelError   a model that the correctness gate refuses, with the reason
    ├── StoreError                  the chunk KV store or its catalogue
    │   ├── EntryError              an entry that cannot be served; always treated as a miss
    │   │   ├── CorruptEntryError   bytes that are not what was written
    │   │   └── EntryAllocationError  no memory or file handle left to read it with
    │   ├── StoreFullError          no room left in a budget or on the disk
    │   ├── RemoteStoreError        a remote tier that failed or did not answer in time
    │   └── StoreFormatError        a catalogue that this version cannot read
    ├── LibraryError                indexing and searching
    │   ├── LibraryMismatchError    a library made with another model, anchor, codec or embedder
    │   ├── LibraryBusyError        another process is writing
    │   └── DocumentError           one document that could not be read (indexing skips and reports it)
    ├── PeerError                   another system that a benchmark cannot install, start or ask
    ├── KernelUnavailableError      a kernel implementation that this machine does not have
    └── GenerationCancelled         the caller cancelled the request

A message names the cause and the next step, in one line.
"""

from __future__ import annotations

from typing import ClassVar, Literal


class RagblendError(Exception):
    """Base of the tree. ``exit_status`` is what the command line exits with."""

    exit_status = 1


class UsageError(RagblendError):
    """What was asked cannot be done, whatever the machine."""

    exit_status = 2


class ConfigError(UsageError, ValueError):
    """A setting outside its range."""


class PathNotFoundError(UsageError):
    """A path, library or model that is not there."""


class CacheHandleError(UsageError):
    """A named cache that is gone, or that belongs to another namespace or model."""


class ContextOverflowError(UsageError):
    """The prompt and the answer do not fit the model's context.

    chunk_tokens: of the prompt, those that need not be in it.
    """

    def __init__(self, prompt_tokens: int, answer_tokens: int, limit: int, chunk_tokens: int = 0) -> None:
        next_step = "shorten the question, or allow fewer tokens for the answer"
        if prompt_tokens - chunk_tokens + answer_tokens <= limit:
            next_step = (
                "ask with fewer chunks (k), allow fewer tokens for the answer, or let the lowest-scored chunks be "
                'left out (overflow "drop")'
            )
        super().__init__(
            f"the prompt has {prompt_tokens:,} tokens and the answer may take {answer_tokens:,}, "
            f"but the model's context is {limit:,}: {next_step}"
        )
        self.prompt_tokens = prompt_tokens
        self.answer_tokens = answer_tokens
        self.limit = limit


class ModelError(RagblendError):
    """A model that cannot be loaded."""


class UnsupportedModelError(ModelError):
    """A model that the correctness gate refuses."""


class StoreError(RagblendError):
    """The chunk KV store or its catalogue."""


class EntryError(StoreError):
    """An entry that cannot be served. ``cause`` is what the miss is counted as."""

    cause: ClassVar[Literal["corrupt", "stale", "alloc"]]


class CorruptEntryError(EntryError):
    """Bytes that are not what was written."""

    cause: ClassVar[Literal["corrupt", "stale"]] = "corrupt"


class EntryAllocationError(EntryError):
    """No memory or file handle left to read an entry with; nothing is wrong with the entry."""

    cause = "alloc"


class StoreFullError(StoreError):
    """No room left in a budget or on the disk."""


class RemoteStoreError(StoreError):
    """A remote tier that failed or did not answer in time. Reading from it is then a miss."""


class StoreFormatError(StoreError):
    """A catalogue that this version cannot read."""


class LibraryError(RagblendError):
    """Indexing and searching."""


class LibraryMismatchError(LibraryError):
    """A library made with another model, anchor (system prompt, template, preamble), codec or embedder."""


class LibraryBusyError(LibraryError):
    """Another process is writing to the library."""


class DocumentError(LibraryError):
    """One document that could not be read."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class PeerError(RagblendError):
    """Another system that a benchmark compares with, and that cannot be installed, started or asked."""


class KernelUnavailableError(RagblendError):
    """A kernel implementation that this machine does not have."""


class GenerationCancelled(RagblendError):
    """The caller cancelled the request; everything it held is freed."""
