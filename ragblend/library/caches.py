"""``engine.caches``: the prefix caches of all namespaces, and named caches in them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

from ragblend.config import DEFAULT_NAMESPACE, PrefixSettings, require, require_namespace
from ragblend.errors import ConfigError, StoreFullError
from ragblend.library.conversation import ConversationReader
from ragblend.library.home import Handle, Home
from ragblend.library.protocol import LibraryEngine
from ragblend.prefix.cache import Owners, PrefixCache
from ragblend.prefix.names import NamedCache, Names, seconds_to_live
from ragblend.prefix.shelf import Shelf
from ragblend.prefix.statistics import CacheStatistics, PrefixUse
from ragblend.prompt import Message, Prompt, Segment
from ragblend.prompt.chat import Piece, TemplateText
from ragblend.prompt.template import ASKING, CHUNKS_GO_HERE
from ragblend.store.memory import MemoryStore

Fill = Callable[[PrefixCache, tuple[int, ...], float], int]
"""Computes and keeps a prompt's beginning, exactly; returns how many of its tokens are kept."""


class Caches:
    """Caches in memory, and those of the libraries that are open: a library keeps its own in its folder.

    What is asked of a namespace concerns the library opened in it last; without one, the engine's memory.
    """

    def __init__(self, engine: LibraryEngine, settings: PrefixSettings, clock: Callable[[], float], fill: Fill) -> None:
        self.settings = settings
        self.clock = clock
        self._engine = engine
        self._fill = fill
        self._own: dict[str, Home] = {}
        self._open: dict[str, list[Home]] = {}
        self._lock = threading.Lock()

    def create(
        self,
        contents: Sequence[Message] | Sequence[Segment],
        *,
        ttl: str | float = "1h",
        name: str = "",
        namespace: str = DEFAULT_NAMESPACE,
    ) -> NamedCache:
        """Compute and keep the beginning of prompts. Later requests go on from it, with ``cache=handle``.

        contents: a conversation's beginning, for ``Library.chat``, ``ask`` and ``complete``, or a prompt's, for
        ``Engine.generate``. ttl: "5m", "1h" or seconds, counted from the last use. Raises ConfigError (nothing in it,
        too few tokens to be worth it, an unknown ttl, a name that is taken), StoreFullError.
        """
        ttl_s = seconds_to_live(ttl)
        require(bool(contents), "a named cache needs at least one message")
        home = self.home(namespace)
        messages = [each for each in contents if isinstance(each, Message)]
        segments = [each for each in contents if isinstance(each, Segment)]
        whole = len(contents) in (len(messages), len(segments))
        require(whole, "a named cache is made of messages, or of segments: give one kind")
        token_ids = self._ids(_shown(self._render(messages))) if messages else _ids_of(segments)
        least = max(self.settings.minimum_tokens, self.settings.block_tokens)
        count = len(token_ids)
        require(count >= least, f"a named cache has at least {least:,} tokens, this has {count:,}")
        cache = home.names.add(name, messages, token_ids, ttl_s, home.built_on(messages, self._engine))
        kept = self._fill(home.prefixes, token_ids, ttl_s)
        if kept < count - count % self.settings.block_tokens:
            home.names.remove(cache)
            raise StoreFullError(
                f"the cache's budget has no room for {count:,} tokens: raise memory_bytes, disk_bytes or the budget"
            )
        return cache

    def get(self, handle: Handle, *, namespace: str = DEFAULT_NAMESPACE) -> NamedCache:
        """By handle, id or name. Raises CacheHandleError if it is gone, or another namespace's."""
        return self.home(namespace).find(handle)

    def list(self, *, namespace: str = DEFAULT_NAMESPACE) -> list[NamedCache]:
        """The named caches of a namespace, in order of creation."""
        return self.home(namespace).names.all()

    def update(self, handle: Handle, *, ttl: str | float, namespace: str = DEFAULT_NAMESPACE) -> NamedCache:
        """Give a named cache another time to live, from now on. Raises CacheHandleError, ConfigError."""
        ttl_s = seconds_to_live(ttl)
        home = self.home(namespace)
        cache = home.names.use(home.find(handle), ttl_s)
        home.prefixes.refresh(cache.token_ids, ttl_s)
        return cache

    def delete(self, handle: Handle, *, namespace: str = DEFAULT_NAMESPACE) -> None:
        """Delete a named cache, and its KV as far as no other one needs it. Raises CacheHandleError."""
        home = self.home(namespace)
        home.drop(home.find(handle))
        home.prefixes.flush()

    def clear(self, *, namespace: str | None = None) -> int:
        """Drop everything that is kept in a namespace (None: in all), from memory and disk, named caches too.

        Returns how many prefixes there were.
        """
        with self._lock:
            names = set(self._own) | set(self._open) if namespace is None else {namespace}
            homes = [home for name in names for home in (*self._open.get(name, ()), *self._own_in(name))]
        cleared = 0
        for home in homes:
            for cache in home.names.all():
                home.names.remove(cache)
            cleared += home.prefixes.clear()
            home.prefixes.flush()
        return cleared

    def statistics(self, *, namespace: str = DEFAULT_NAMESPACE) -> CacheStatistics:
        """What a namespace's cache holds and saved."""
        return self.home(namespace).prefixes.statistics()

    def prefixes(self, *, namespace: str = DEFAULT_NAMESPACE) -> tuple[PrefixUse, ...]:
        """What is kept in a namespace, last used first."""
        return self.home(namespace).prefixes.prefixes()

    def home(self, namespace: str) -> Home:
        """What a namespace's questions concern."""
        require_namespace(namespace)
        with self._lock:
            opened = self._open.get(namespace)
        return opened[-1] if opened else self.own(namespace)

    def own(self, namespace: str) -> Home:
        """A namespace's cache in the engine's memory."""
        with self._lock:
            if namespace not in self._own:
                self._own[namespace] = self._make(namespace)
            return self._own[namespace]

    def attach(self, namespace: str, memory: MemoryStore | None, shelf: Shelf, owners: Owners) -> Home:
        """The cache of a library that is being opened. memory: its tier in memory, if it has one."""
        home = self._make(namespace, memory, shelf, owners)
        with self._lock:
            self._open.setdefault(namespace, []).append(home)
        return home

    def detach(self, home: Home, *, abandon: bool = False) -> None:
        """Forget a library that is being closed, once what waits is written down, unless it is abandoned."""
        with self._lock:
            opened = self._open.get(home.prefixes.namespace, [])
            if home in opened:
                opened.remove(home)
            if not opened:
                self._open.pop(home.prefixes.namespace, None)
        home.prefixes.close(abandon=abandon)

    def before(
        self, prompt: Prompt, handle: Handle, prefixes: PrefixCache | Literal["off"] | None
    ) -> tuple[Prompt, PrefixCache]:
        """A prompt behind what a named cache holds, and where that is kept. Its time to live counts from now.

        prefixes: of the namespace that asks, None for the default one. Raises CacheHandleError, ConfigError.
        """
        if prefixes == "off":
            raise ConfigError("a named cache cannot be used with prefixes='off': give one of the two")
        home = self.home(prefixes.namespace if prefixes else DEFAULT_NAMESPACE)
        named = home.use(handle)
        moved = [replace(point, tokens=point.tokens + named.tokens) for point in prompt.cache_points]
        segments = (Segment("prefix", named.token_ids), *prompt.segments)
        return Prompt(segments, (named.cache_point, *moved)), prefixes or home.prefixes

    def ask(self, named: NamedCache, chunks: Sequence[Segment], question: str) -> Prompt:
        """The prompt for a question over ``chunks`` that goes on from a named cache. Raises ConfigError."""
        template = self._engine.template
        behind = self.go_on(named, [ASKING], None)
        pieces = template.chat.render((*named.messages, ASKING), None) if behind is None else behind
        place = next(index for index, piece in enumerate(pieces) if piece is CHUNKS_GO_HERE)
        before = self._ids(pieces[:place]) if behind is None else (*named.token_ids, *self._ids(pieces[:place]))
        prompt = template.build(chunks, question, (before, self._ids(pieces[place + 1 :])))
        return prompt if behind is None else replace(prompt, cache_points=(named.cache_point,))

    def go_on(
        self, cache: NamedCache, messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None
    ) -> Sequence[Piece] | None:
        """The pieces of a conversation behind a named cache; None where the template writes it differently now.

        Raises ConfigError for a cache that was made from segments.
        """
        require(
            bool(cache.messages),
            f"the cache {cache.name!r} was made from segments, which are no conversation: use it with engine.generate",
        )
        pieces = self._engine.template.chat.render((*cache.messages, *messages), tools)
        before = _shown(self._render(cache.messages))
        return pieces[len(before) :] if pieces[: len(before)] == before else None

    def _own_in(self, namespace: str) -> Sequence[Home]:
        return [self._own[namespace]] if namespace in self._own else []

    def _make(
        self,
        namespace: str,
        memory: MemoryStore | None = None,
        shelf: Shelf | None = None,
        owners: Owners | None = None,
    ) -> Home:
        model = self._engine.identity.digest()
        if memory is None and self.settings.memory_bytes:
            memory = MemoryStore(self.settings.memory_bytes)
        home = Home(
            PrefixCache(namespace, model, self.settings, self.clock, memory, shelf, owners),
            _names(namespace, model, self.clock, shelf),
            shelf.store.of if shelf else None,
        )
        home.prefixes.after_expiry = home.names.all
        return home

    def _render(self, messages: Sequence[Message]) -> Sequence[Piece]:
        return self._engine.template.chat.render(messages, None)

    def _ids(self, pieces: Sequence[Piece]) -> tuple[int, ...]:
        return _ids_of(ConversationReader(self._engine, MemoryStore(1), DEFAULT_NAMESPACE, None).read(pieces).runs)


def _ids_of(segments: Sequence[Segment]) -> tuple[int, ...]:
    return tuple(token for segment in segments for token in segment.token_ids)


def _shown(pieces: Sequence[Piece]) -> list[Piece]:
    """Pieces up to the last one that is not the template's own."""
    last = max((index for index, piece in enumerate(pieces) if not isinstance(piece, TemplateText)), default=-1)
    return list(pieces[: last + 1])


def unattended(namespace: str, shelf: Shelf, owners: Owners) -> Home:
    """The cache of a library that is open without a model: to look at and to clear, for nothing is found in it."""
    prefixes = PrefixCache(namespace, "", PrefixSettings(), time.time, None, shelf, owners)
    return Home(prefixes, _names(namespace, None, time.time, shelf))


def _names(namespace: str, model: str | None, clock: Callable[[], float], shelf: Shelf | None) -> Names:
    if shelf is None:
        return Names(namespace, model, clock)
    return Names(namespace, model, clock, shelf.store.catalogue, shelf.values)
