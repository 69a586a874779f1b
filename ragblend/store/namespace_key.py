"""Which key a namespace was encrypted with: recorded in the catalogue by its id, so that no other is tried."""

from __future__ import annotations

from ragblend.errors import StoreError
from ragblend.store.catalogue import Catalogue
from ragblend.store.encryption import Cipher


def is_locked(catalogue: Catalogue, namespace: str, cipher: Cipher | None) -> bool:
    """Whether the namespace is encrypted and no key was given. An empty namespace becomes the given key's.

    Raises StoreError for another key than the namespace's, or a key for a namespace that is not encrypted.
    """
    setting = f"encryption:{namespace}"
    recorded = catalogue.setting(setting)
    if cipher is None:
        return recorded is not None
    if recorded is None and not catalogue.read_only:
        with catalogue.transaction():
            if not _is_used(catalogue, namespace):
                recorded = cipher.key_id
                catalogue.set({setting: recorded})
    if recorded is None:
        raise StoreError(
            f"{catalogue.path.parent}: namespace {namespace!r} is not encrypted: "
            "open it without a key, or index its documents into a new namespace"
        )
    if recorded != cipher.key_id:
        raise StoreError(
            f"{catalogue.path.parent}: namespace {namespace!r} was encrypted with another key: give that one"
        )
    return False


def _is_used(catalogue: Catalogue, namespace: str) -> bool:
    tables = ("entries", "documents", "precomputed")
    return any(catalogue.rows(f"SELECT 1 FROM {table} WHERE namespace = ? LIMIT 1", namespace) for table in tables)
