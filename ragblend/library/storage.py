"""A library's chunk KV store, from settings and from what is recorded in the library."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from ragblend.config import DiskLimits, StoreSettings, require
from ragblend.errors import ConfigError
from ragblend.library import layout
from ragblend.library.lock import writing
from ragblend.library.report import StoreInfo
from ragblend.library.sealing import seal_older_rows
from ragblend.prefix.run_store import RunStore
from ragblend.prefix.shelf import Shelf
from ragblend.store.base import StoreEvents
from ragblend.store.catalogue import Catalogue
from ragblend.store.device import DeviceStore
from ragblend.store.disk import DiskStore
from ragblend.store.encryption import Cipher
from ragblend.store.files import Files
from ragblend.store.memory import MemoryStore
from ragblend.store.namespace_key import require_same_key, row_values
from ragblend.store.outbox import Outbox
from ragblend.store.quota import bytes_below
from ragblend.store.remote import RemoteStore
from ragblend.store.tiers import TieredStore

_TOTAL = "total_disk_budget"


def open_store(
    folder: Path,
    catalogue: Catalogue,
    namespace: str,
    files: Files,
    settings: StoreSettings,
    codec: str,
    events: StoreEvents,
    device: torch.device | None,
) -> TieredStore:
    """The store of one namespace. device: where chunks are placed, None if there is no engine.

    Raises ConfigError, PathNotFoundError (the key file), StoreError (another key), StoreFormatError (rows that
    have to be sealed first).
    """
    cipher = _cipher(folder, settings)
    seal_older_rows(folder, catalogue, namespace, cipher)
    if settings.disk is not None and not catalogue.read_only:
        _record_limits(catalogue, namespace, settings.disk)
    limits = settings.disk or recorded_limits(catalogue, namespace)
    near, memory, remote = None, None, None
    options: dict[str, Any] = {"low_watermark": limits.low_watermark, "ttl_s": limits.ttl_s, "events": events}
    if settings.device_budget and device is not None and device.type != "cpu":
        near = DeviceStore(settings.device_budget, device, **options)
    if settings.memory_budget:
        page_locked = device is not None and device.type == "cuda"
        memory = MemoryStore(settings.memory_budget, page_locked=page_locked, **options)
    url = _remote_url(catalogue, namespace, settings.remote)
    locked = row_values(catalogue, namespace, cipher).locked
    if url and not locked:  # without its key, an encrypted namespace's folder there is not known
        remote = RemoteStore(
            url,
            cipher.secret_name(namespace) if cipher else namespace,
            options=settings.remote_options,
            timeout_s=settings.remote_timeout_s,
            tries=settings.remote_tries,
            cipher=cipher,
            codec=codec,
            events=events,
        )
    shared = settings.shared_namespace
    require(shared != namespace, f"namespace {namespace!r} cannot share itself: name another one")
    store = TieredStore(
        folder,
        catalogue,
        namespace,
        files,
        limits=limits,
        cipher=cipher,
        codec=codec,
        events=events,
        device=near,
        memory=memory,
        remote=remote,
        remembers=bool(url),
    )
    store.exclusive = writer_lock(folder, store)
    return store


def open_shelf(store: TieredStore, clock: Callable[[], float]) -> Shelf:
    """Where a namespace's prefix cache keeps its runs: encrypted as the namespace is, within its limits."""
    return Shelf(RunStore(store, clock))


def store_info(store: TieredStore) -> StoreInfo:
    limits = store.room.limits
    return StoreInfo(
        codec=store.codec.name,
        disk_bytes=bytes_below(store.room.quota.folders),
        disk_budget=limits.budget,
        total_disk_bytes=bytes_below((store.folder.parent, store.quarantine.parent)),
        total_disk_budget=limits.total_budget,
        free_space_floor=limits.free_space_floor,
        ttl_s=limits.ttl_s,
        evicted=len(store.evicted()),
        encrypted=store.values.encrypted,
        remote=store.catalogue.setting(f"remote:{store.namespace}") or "",
        pending=Outbox(store.catalogue, store.namespace).count(),
    )


def writer_lock(folder: Path, store: DiskStore) -> Callable[[], AbstractContextManager[None]]:
    """The library's writer lock, which lets the store's limits know of what others have written."""

    @contextmanager
    def exclusive() -> Iterator[None]:
        with writing(folder / layout.WRITER_LOCK) as interrupted:
            require_same_key(store.catalogue, store.namespace, store.values)
            store.room.begin_writing(interrupted=interrupted)
            yield

    return exclusive


def recorded_limits(catalogue: Catalogue, namespace: str) -> DiskLimits:
    """What the namespace may take of the disk, as it was last set."""
    recorded = catalogue.setting(_name(namespace))
    total = catalogue.setting(_TOTAL)
    limits = DiskLimits(**json.loads(recorded)) if recorded else DiskLimits()
    return replace(limits, total_budget=int(total) if total else None)


def _remote_url(catalogue: Catalogue, namespace: str, given: str | None) -> str:
    """The remote tier's URL, as given, else as it was last time."""
    setting = f"remote:{namespace}"
    if given is None:
        return catalogue.setting(setting) or ""
    if not catalogue.read_only:
        with catalogue.transaction() as connection:
            catalogue.set({setting: given})
            if not given:
                connection.execute("DELETE FROM outbox WHERE namespace = ?", (namespace,))
    return given


def _record_limits(catalogue: Catalogue, namespace: str, limits: DiskLimits) -> None:
    values = {name: value for name, value in asdict(limits).items() if name != "total_budget"}
    catalogue.set({_name(namespace): json.dumps(values), _TOTAL: str(limits.total_budget or "")})


def _name(namespace: str) -> str:
    return f"limits:{namespace}"


def _cipher(folder: Path, settings: StoreSettings) -> Cipher | None:
    if settings.encryption_key_file is None:
        return None
    path = Path(settings.encryption_key_file).expanduser()
    if path.resolve().is_relative_to(folder.resolve()):
        raise ConfigError(f"{path}: a key beside what it protects protects nothing: keep it outside the library")
    return Cipher.from_file(path)
