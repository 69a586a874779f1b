"""A namespace that another one may read: what is common to all tenants, indexed once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from ragblend.errors import LibraryError
from ragblend.library import layout
from ragblend.library.embedding import Vectors
from ragblend.library.records import Records
from ragblend.library.report import Hit
from ragblend.library.retrieval import Retriever
from ragblend.library.storage import recorded_limits
from ragblend.store.base import StoreEvents
from ragblend.store.catalogue import Catalogue
from ragblend.store.disk import DiskStore
from ragblend.store.files import Files

logger = logging.getLogger(__name__)


class SharedNamespace:
    """Its chunks are found and their KV is served, through a read-only catalogue, so nothing in it can change.

    Reuse goes one way and by name: keys hold the namespace, so no tenant's chunk is ever looked up here, and what a
    tenant does leaves no trace here. Raises LibraryError for an encrypted namespace.
    """

    def __init__(
        self, folder: Path, namespace: str, index: Path, stamp: Callable[[], str], files: Files, events: StoreEvents
    ) -> None:
        self.namespace = namespace
        self._catalogue = Catalogue(folder / layout.CATALOGUE, read_only=True)
        limits = recorded_limits(self._catalogue, namespace)
        self.store = DiskStore(folder, self._catalogue, namespace, files, limits=limits, events=events)
        self._retriever = Retriever(Records(self._catalogue, namespace), index, stamp)
        if self.store.values.encrypted:
            self.close()
            raise LibraryError(f"namespace {namespace!r} is encrypted: it cannot be shared with others")
        if self.is_empty():  # it may be filled later, or misspelt
            logger.warning("nothing is indexed in the shared namespace %r", namespace)

    def is_empty(self) -> bool:
        return self._retriever.is_empty()

    def beside(self, own: list[Hit], vector: Vectors, k: int, where: Callable[[Hit], bool] | None) -> list[Hit]:
        """The ``k`` best of the own hits and the shared ones; a text that is in both is the own one."""
        texts = {hit.segment.token_ids for hit in own}
        shared = [hit for hit in self._retriever.search(vector, k, where) if hit.segment.token_ids not in texts]
        return sorted([*own, *shared], key=lambda hit: -hit.score)[:k]

    def close(self) -> None:
        self.store.close()
        self._catalogue.close()
