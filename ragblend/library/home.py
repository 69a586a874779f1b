"""Where a namespace's prefixes and named caches are kept."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ragblend.errors import CacheHandleError
from ragblend.library.protocol import LibraryEngine
from ragblend.prefix.cache import PrefixCache
from ragblend.prefix.names import NamedCache, Names
from ragblend.prompt import Message, Passage, chunk_text
from ragblend.store.disk import DiskStore

Handle = NamedCache | str


@dataclass(frozen=True, slots=True)
class Home:
    """A namespace's prefix cache, and its named caches. chunks: the library's, None where there is no library."""

    prefixes: PrefixCache
    names: Names
    chunks: DiskStore | None = None

    def find(self, handle: Handle) -> NamedCache:
        """A named cache by handle, id or name. Raises CacheHandleError if it is gone, or another namespace's."""
        cache = self.names.find(handle)
        if self._is_stale(cache):
            self.drop(cache)
            raise CacheHandleError(
                f"the cache {cache.name!r} holds a document that has been replaced or removed: "
                "create it anew (caches.create)"
            )
        return cache

    def use(self, handle: Handle) -> NamedCache:
        """As ``find``, and its time to live counts from now."""
        return self.names.use(self.find(handle))

    def drop(self, cache: NamedCache) -> None:
        """Delete a named cache, and its KV as far as no other one needs it."""
        self.names.remove(cache)
        needed = {piece.run.key for other in self.names.all() for piece in self.prefixes.along(other.token_ids)}
        own = {piece.run.key for piece in self.prefixes.along(cache.token_ids)}
        self.prefixes.forget(own - needed)

    def revalidate(self) -> None:
        """Drop what was built on documents and texts that are gone, and what is past its time."""
        self.prefixes.revalidate()
        for cache in self.names.all():
            if self._is_stale(cache):
                self.drop(cache)

    def built_on(self, messages: Iterable[Message], engine: LibraryEngine) -> frozenset[str]:
        """Keys of the library's chunks that stand in messages as passages."""
        if self.chunks is None:
            return frozenset()
        passages = {part for message in messages for part in message.content if isinstance(part, Passage)}
        forms = {form for each in passages for form in (chunk_text(each.title, "", each.text), each.text.strip())}
        ids = [engine.template.text_ids(form) for form in forms]
        namespace, codec = self.chunks.key_namespace, self.chunks.codec.name
        alone = [engine.chunk_key(namespace, each, codec) for each in ids]
        of_documents = {key for form in forms if (key := self.prefixes.key_of(form))}
        return frozenset(self.prefixes.known(alone) | of_documents)

    def _is_stale(self, cache: NamedCache) -> bool:
        return bool(cache.built_on) and self.prefixes.known(cache.built_on) != cache.built_on
