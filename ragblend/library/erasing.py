"""Removing everything of a namespace, which needs no key: what is to go need not be read."""

from __future__ import annotations

from ragblend.library.precomputed import PrecomputedTexts
from ragblend.library.records import Records
from ragblend.prefix.shelf import Shelf
from ragblend.store.disk import DiskStore
from ragblend.store.namespace_key import key_setting


def erase(records: Records, texts: PrecomputedTexts, store: DiskStore, shelf: Shelf) -> int:
    """Remove all rows in one transaction, then the files. Returns how many documents there were.

    The namespace is then as if it had never been, without a key of its own. Its limits and its remote tier stay.
    """
    stores = (store, shelf.store)
    with records.catalogue.transaction():
        documents = records.clear()
        texts.clear()
        shelf.clear()
        for each in stores:
            each.forget({entry.key for entry in each.entries()} | each.evicted())
        records.catalogue.unset(key_setting(each.namespace) for each in stores)
    for each in stores:
        for path in each.dead_files():
            each.remove_file(path)
    return documents
