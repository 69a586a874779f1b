"""``engine.caches``: the prefix caches of all namespaces, and named caches in them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ragblend.config import DEFAULT_NAMESPACE, PrefixSettings, require
from ragblend.errors import StoreFullError
from ragblend.library.conversation import Conversation, ConversationReader
from ragblend.library.protocol import LibraryEngine
from ragblend.prefix.cache import Owners, PrefixCache
from ragblend.prefix.names import NamedCache, Names, seconds_to_live
from ragblend.prefix.shelf import Shelf
from ragblend.prefix.statistics import CacheStatistics, PrefixUse
from ragblend.prompt import Message
from ragblend.prompt.chat import Piece, TemplateText
from ragblend.store.memory import MemoryStore

Handle = NamedCache | str
Fill = Callable[[PrefixCache, tuple[int, ...], float], int]
"""Computes and keeps a prompt's beginning, exactly; returns how many of its tokens are kept."""


@dataclass(frozen=True, slots=True)
class Home:
    """A namespace's prefix cache, and its named caches."""

    prefixes: PrefixCache
    names: Names


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
        messages: Sequence[Message],
        *,
        ttl: str | float = "1h",
        name: str = "",
        namespace: str = DEFAULT_NAMESPACE,
    ) -> NamedCache:
        """Compute and keep the beginning of a conversation. Later requests go on from it: ``chat(..., cache=handle)``.

        ttl: "5m", "1h" or seconds, counted from the last use. Raises ConfigError (no messages, too few tokens
        to be worth it, an unknown ttl, a name that is taken), StoreFullError.
        """
        ttl_s = seconds_to_live(ttl)
        require(bool(messages), "a named cache needs at least one message")
        home = self.home(namespace)
        conversation = self._read(_shown(self._render(messages)))
        token_ids = tuple(token for run in conversation.runs for token in run.token_ids)
        least = max(self.settings.minimum_tokens, self.settings.block_tokens)
        count = len(token_ids)
        require(count >= least, f"a named cache has at least {least:,} tokens, these messages have {count:,}")
        cache = home.names.add(name, messages, token_ids, ttl_s)
        kept = self._fill(home.prefixes, token_ids, ttl_s)
        if kept < count - count % self.settings.block_tokens:
            home.names.remove(cache)
            raise StoreFullError(f"the cache's budget has no room for {count:,} tokens: raise memory_bytes")
        return cache

    def get(self, handle: Handle, *, namespace: str = DEFAULT_NAMESPACE) -> NamedCache:
        """By handle, id or name. Raises CacheHandleError if it is gone, or another namespace's."""
        return self.home(namespace).names.find(handle)

    def list(self, *, namespace: str = DEFAULT_NAMESPACE) -> list[NamedCache]:
        """The named caches of a namespace, in order of creation."""
        return self.home(namespace).names.all()

    def update(self, handle: Handle, *, ttl: str | float, namespace: str = DEFAULT_NAMESPACE) -> NamedCache:
        """Give a named cache another time to live, from now on. Raises CacheHandleError, ConfigError."""
        ttl_s = seconds_to_live(ttl)
        home = self.home(namespace)
        cache = home.names.use(home.names.find(handle), ttl_s)
        home.prefixes.refresh(cache.token_ids, ttl_s)
        return cache

    def delete(self, handle: Handle, *, namespace: str = DEFAULT_NAMESPACE) -> None:
        """Delete a named cache, and its KV as far as no other one needs it. Raises CacheHandleError."""
        home = self.home(namespace)
        cache = home.names.find(handle)
        home.names.remove(cache)
        needed = {piece.run.key for other in home.names.all() for piece in home.prefixes.along(other.token_ids)}
        own = {piece.run.key for piece in home.prefixes.along(cache.token_ids)}
        home.prefixes.forget(own - needed)
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
        require(bool(namespace), "the namespace is empty: give it a name")
        with self._lock:
            opened = self._open.get(namespace)
        return opened[-1] if opened else self.own(namespace)

    def own(self, namespace: str) -> Home:
        """A namespace's cache in the engine's memory."""
        with self._lock:
            if namespace not in self._own:
                self._own[namespace] = self._make(namespace, None, None)
            return self._own[namespace]

    def attach(self, namespace: str, shelf: Shelf, owners: Owners) -> Home:
        """The cache of a library that is being opened."""
        home = self._make(namespace, shelf, owners)
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

    def go_on(
        self, cache: NamedCache, messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None
    ) -> Sequence[Piece] | None:
        """The pieces of a conversation behind a named cache; None where the template writes it differently now."""
        pieces = self._engine.template.chat.render((*cache.messages, *messages), tools)
        before = _shown(self._render(cache.messages))
        return pieces[len(before) :] if pieces[: len(before)] == before else None

    def _own_in(self, namespace: str) -> Sequence[Home]:
        return [self._own[namespace]] if namespace in self._own else []

    def _make(self, namespace: str, shelf: Shelf | None, owners: Owners | None) -> Home:
        model = self._engine.identity.digest()
        prefixes = PrefixCache(namespace, model, self.settings, self.clock, shelf, owners)
        return Home(prefixes, _names(namespace, model, self.clock, shelf))

    def _render(self, messages: Sequence[Message]) -> Sequence[Piece]:
        return self._engine.template.chat.render(messages, None)

    def _read(self, pieces: Sequence[Piece]) -> Conversation:
        return ConversationReader(self._engine, MemoryStore(1), DEFAULT_NAMESPACE, None).read(pieces)


def _shown(pieces: Sequence[Piece]) -> list[Piece]:
    """Pieces up to the last one that is not the template's own."""
    last = max((index for index, piece in enumerate(pieces) if not isinstance(piece, TemplateText)), default=-1)
    return list(pieces[: last + 1])


def unattended(namespace: str, shelf: Shelf, owners: Owners) -> Home:
    """The cache of a library that is open without a model: to look at and to clear, for nothing is found in it."""
    prefixes = PrefixCache(namespace, "", PrefixSettings(), time.time, shelf, owners)
    return Home(prefixes, _names(namespace, None, time.time, shelf))


def _names(namespace: str, model: str | None, clock: Callable[[], float], shelf: Shelf | None) -> Names:
    if shelf is None:
        return Names(namespace, model, clock)
    return Names(namespace, model, clock, shelf.store.catalogue, shelf.values)
