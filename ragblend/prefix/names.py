"""Named caches: beginnings of conversations under a handle, until nobody has used them for their time to live."""

from __future__ import annotations

import json
import math
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ragblend.config import require
from ragblend.errors import CacheHandleError, ConfigError
from ragblend.prompt.conversation import TIMES_TO_LIVE, Message, Passage
from ragblend.prompt.segments import CacheBreak
from ragblend.store.catalogue import Catalogue
from ragblend.store.key import token_bytes, token_ids_of
from ragblend.store.row_values import AS_THEY_ARE, RowValues

_COLUMNS = "id, name, namespace, model, messages, token_ids, ttl_s, created_at, used_at"


@dataclass(frozen=True, slots=True)
class NamedCache:
    """A handle. tokens: how many of a prompt it stands for. messages: none where it was made from segments.

    built_on: keys of the library's chunks in it. Times are seconds (since the epoch, ttl_s excepted).
    """

    id: str
    name: str
    namespace: str
    tokens: int
    ttl_s: float
    created_at: float
    used_at: float
    messages: tuple[Message, ...] = field(repr=False, compare=False)
    token_ids: tuple[int, ...] = field(repr=False, compare=False)
    built_on: frozenset[str] = field(default=frozenset(), repr=False, compare=False)

    @property
    def expires_at(self) -> float:
        return self.used_at + self.ttl_s

    def token_hours(self, now: float) -> float:
        """What holding it has come to until ``now``, for the price of storage."""
        return self.tokens * max(0.0, now - self.created_at) / 3600

    @property
    def cache_point(self) -> CacheBreak:
        """What keeps it in the prompts that go on from it."""
        return CacheBreak(self.tokens, self.ttl_s, named=True)


def seconds_to_live(ttl: str | float) -> float:
    """A time to live in seconds: "5m", "1h" or a number of seconds. Raises ConfigError."""
    if isinstance(ttl, str):
        require(ttl in TIMES_TO_LIVE, f"ttl must be {', '.join(TIMES_TO_LIVE)} or a number of seconds, got {ttl!r}")
        return TIMES_TO_LIVE[ttl]
    known = isinstance(ttl, int | float) and not isinstance(ttl, bool) and math.isfinite(ttl) and ttl > 0
    require(known, f"ttl must be {', '.join(TIMES_TO_LIVE)} or a positive number of seconds, got {ttl!r}")
    return float(ttl)


class Names:
    """The named caches of one namespace and model (None: of all), in the catalogue if there is one.

    Safe to share between threads. values: how the rows' values are stored.
    """

    def __init__(
        self,
        namespace: str,
        model: str | None,
        clock: Callable[[], float],
        catalogue: Catalogue | None = None,
        values: RowValues = AS_THEY_ARE,
    ) -> None:
        self._namespace = namespace
        self._model = model
        self._clock = clock
        self._catalogue = catalogue
        self._values = values
        self._memory: dict[str, NamedCache] = {}
        self._lock = threading.RLock()

    def add(
        self,
        name: str,
        messages: Sequence[Message],
        token_ids: tuple[int, ...],
        ttl_s: float,
        built_on: frozenset[str] = frozenset(),
    ) -> NamedCache:
        """built_on: keys of the chunks in it. Raises ConfigError if there is one of this name."""
        with self._lock:
            now, id = self._clock(), f"cache-{secrets.token_hex(8)}"
            require(all(c.name != name for c in self.all()), f"there is a cache called {name!r}: update or delete it")
            made = NamedCache(
                id,
                name or id,
                self._namespace,
                len(token_ids),
                ttl_s,
                now,
                now,
                tuple(messages),
                token_ids,
                built_on,
            )
            self._write(made)
            return made

    def find(self, handle: NamedCache | str) -> NamedCache:
        """By handle, id or name. Raises CacheHandleError if it is gone, or another namespace's."""
        wanted = handle if isinstance(handle, str) else handle.id
        for cache in self.all():
            if wanted in (cache.id, cache.name):
                return cache
        if isinstance(handle, str):
            raise CacheHandleError(f"no cache {handle!r} in namespace {self._namespace!r}: create it (caches.create)")
        if handle.namespace != self._namespace:
            raise CacheHandleError(
                f"the cache {handle.name!r} belongs to namespace {handle.namespace!r}, not to {self._namespace!r}: "
                "create one here (caches.create)"
            )
        raise CacheHandleError(f"the cache {handle.name!r} has expired or was deleted: create it anew (caches.create)")

    def use(self, cache: NamedCache, ttl_s: float | None = None) -> NamedCache:
        """Count its time to live, or another one, from now."""
        with self._lock:
            used = replace(self.find(cache), used_at=self._clock(), ttl_s=ttl_s or cache.ttl_s)
            self._write(used)
            return used

    def remove(self, cache: NamedCache) -> None:
        with self._lock:
            self._memory.pop(cache.id, None)
            if self._catalogue is not None and not self._catalogue.read_only:
                with self._catalogue.transaction() as connection:
                    connection.execute("DELETE FROM prefix_names WHERE id = ?", (cache.id,))

    def all(self) -> list[NamedCache]:
        """Those that have not expired, in order of creation; the others are removed."""
        with self._lock:
            found, now = {**self._stored(), **self._memory}, self._clock()
            for cache in found.values():
                if cache.expires_at <= now:
                    self.remove(cache)
            return sorted((c for c in found.values() if c.expires_at > now), key=lambda c: (c.created_at, c.id))

    def _write(self, cache: NamedCache) -> None:
        if self._catalogue is None or self._catalogue.read_only:
            self._memory[cache.id] = cache
            return
        seal = self._values.seal
        row = (
            cache.id,
            self._values.name("prefix_names.name", cache.name),
            self._namespace,
            self._model,
            seal("prefix_names.messages", cache.id, _contents_json(cache)),
            seal("prefix_names.token_ids", cache.id, token_bytes(cache.token_ids)),
            cache.ttl_s,
            cache.created_at,
            cache.used_at,
        )
        with self._catalogue.transaction() as connection:
            marks = ", ".join("?" * len(row))
            connection.execute(f"INSERT OR REPLACE INTO prefix_names ({_COLUMNS}) VALUES ({marks})", row)

    def _stored(self) -> dict[str, NamedCache]:
        if self._catalogue is None:
            return {}
        rows = self._catalogue.sound_rows(
            ["prefix_names"],
            _COLUMNS,
            "FROM prefix_names WHERE namespace = ?1 AND (model = ?2 OR ?2 IS NULL)",
            self._namespace,
            self._model,
        )
        return {row[0]: _cache_of(row, self._values) for row in rows}


def _cache_of(row: tuple[Any, ...], values: RowValues) -> NamedCache:
    id, name, namespace, _, messages, token_ids, ttl_s, created_at, used_at = row
    name = values.unname("prefix_names.name", name)
    ids = token_ids_of(values.open("prefix_names.token_ids", id, token_ids))
    parts = json.loads(values.open("prefix_names.messages", id, messages))
    read = tuple(_message_of(part) for part in parts if "role" in part)
    built_on = frozenset(key for part in parts for key in part.get("built_on", ()))
    return NamedCache(id, name, namespace, len(ids), ttl_s, created_at, used_at, read, ids, built_on)


def _contents_json(cache: NamedCache) -> str:
    return json.dumps([*map(_message_json, cache.messages), {"built_on": sorted(cache.built_on)}])


def _message_json(message: Message) -> dict[str, Any]:
    content = [
        part if isinstance(part, str) else {"text": part.text, "title": part.title, "document": part.document}
        for part in message.content
        if isinstance(part, str | Passage)
    ]
    try:
        return json.loads(json.dumps({"role": message.role, "content": content, "extra": dict(message.extra)}))  # type: ignore[no-any-return]
    except TypeError as error:
        raise ConfigError(f"a cached message's extra must be JSON: {error}") from error


def _message_of(value: dict[str, Any]) -> Message:
    content = tuple(part if isinstance(part, str) else Passage(**part) for part in value["content"])
    return Message(value["role"], content, value["extra"])
