"""What the library needs of an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

import torch

from ragblend.answer import AnswerStream, StreamWatcher
from ragblend.config import BlendSettings, GenerationSettings
from ragblend.prefix.cache import PrefixCache
from ragblend.prompt import Prompt, PromptTemplate
from ragblend.store.base import ChunkKV, KVStore
from ragblend.store.key import ModelIdentity

if TYPE_CHECKING:
    from ragblend.library.caches import Caches


class LibraryEngine(Protocol):
    """``ragblend.Engine``, as far as the library uses it. ``reference`` is what to load the model by."""

    name: str
    reference: str
    template: PromptTemplate
    blend: BlendSettings
    caches: Caches

    @property
    def identity(self) -> ModelIdentity: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def anchor_ids(self) -> tuple[int, ...]: ...

    @property
    def chunk_room(self) -> int: ...

    @property
    def prefills_in_context(self) -> bool: ...

    def chunk_key(
        self, namespace: str, token_ids: Sequence[int], codec: str = "raw", context_ids: Sequence[int] = ()
    ) -> str: ...

    def prefill(
        self,
        chunks: Sequence[tuple[int, ...]],
        *,
        contexts: Sequence[tuple[int, ...]] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> Iterator[ChunkKV]: ...

    def stream(
        self,
        prompt: Prompt,
        *,
        store: KVStore | None = None,
        blend: BlendSettings | None = None,
        generation: GenerationSettings | None = None,
        retrieve_s: float = 0.0,
        watcher: StreamWatcher | None = None,
        prefixes: PrefixCache | Literal["off"] | None = None,
    ) -> AnswerStream: ...
