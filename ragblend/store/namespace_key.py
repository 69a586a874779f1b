"""Which key a namespace was encrypted with: recorded in the catalogue by its id, so that no other is tried."""

from __future__ import annotations

from ragblend.errors import StoreError
from ragblend.store.catalogue import Catalogue
from ragblend.store.encryption import Cipher
from ragblend.store.row_values import AS_THEY_ARE, LockedRowValues, RowValues, SealedRowValues


def row_values(catalogue: Catalogue, namespace: str, cipher: Cipher | None) -> RowValues:
    """How the namespace's values are stored. An empty namespace becomes the given key's.

    Raises StoreError for another key than the namespace's, or a key for a namespace that is not encrypted.
    """
    folder = catalogue.path.parent
    recorded = catalogue.setting(key_setting(namespace))
    if cipher is None:
        return AS_THEY_ARE if recorded is None else LockedRowValues(folder, namespace, recorded)
    if recorded is None and not catalogue.read_only:
        with catalogue.transaction():
            recorded = catalogue.setting(key_setting(namespace))  # by another process, meanwhile
            if recorded is None and not _is_used(catalogue, namespace):
                recorded = cipher.key_id
                catalogue.set({key_setting(namespace): recorded})
    if recorded is None:
        raise StoreError(
            f"{folder}: namespace {namespace!r} is not encrypted: "
            "open it without a key, or index its documents into a new namespace"
        )
    if recorded != cipher.key_id:
        raise StoreError(f"{folder}: namespace {namespace!r} was encrypted with another key: give that one")
    return SealedRowValues(cipher, namespace, catalogue.path)


def require_same_key(catalogue: Catalogue, namespace: str, values: RowValues) -> None:
    """Raise StoreError if the namespace was erased, or was given a key, since it was opened."""
    if catalogue.setting(key_setting(namespace)) != values.key_id:
        raise StoreError(f"{catalogue.path.parent}: namespace {namespace!r} has another key by now: open it again")


def key_setting(namespace: str) -> str:
    """The setting that holds the id of a namespace's key."""
    return f"encryption:{namespace}"


def _is_used(catalogue: Catalogue, namespace: str) -> bool:
    tables = ("entries", "documents", "precomputed", "prefix_runs", "prefix_names")
    return any(catalogue.rows(f"SELECT 1 FROM {table} WHERE namespace = ? LIMIT 1", namespace) for table in tables)
