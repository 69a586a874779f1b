"""The options that say where and how a library keeps chunk KV, as settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ragblend.cli.output import stderr
from ragblend.config import DEFAULT_NAMESPACE, DiskLimits, StoreSettings, byte_count
from ragblend.errors import ConfigError

if TYPE_CHECKING:
    from ragblend.library.library import Library

_NONE = "none"
_DAY_S = 86_400
_LONGEST_FLUSH_S = 3_600


def limits_from(
    folder: Path,
    namespace: str = DEFAULT_NAMESPACE,
    *,
    disk_budget: str | None = None,
    total_disk_budget: str | None = None,
    keep_free: str | None = None,
    ttl_days: str | None = None,
) -> DiskLimits | None:
    """The library's limits with what the options change; None if they change nothing. Raises ConfigError."""
    changes: dict[str, int | float | None] = {}
    if disk_budget is not None:
        changes["budget"] = _bytes_or_none(disk_budget)
    if total_disk_budget is not None:
        changes["total_budget"] = _bytes_or_none(total_disk_budget)
    if keep_free is not None:
        changes["free_space_floor"] = _bytes_or_none(keep_free) or 0
    if ttl_days is not None:
        changes["ttl_s"] = None if ttl_days == _NONE else _days(ttl_days) * _DAY_S
    if not changes:
        return None
    replace(DiskLimits(), **changes)  # type: ignore[arg-type]  # refused before the library is opened
    return replace(_recorded(folder, namespace), **changes)  # type: ignore[arg-type]


def store_settings(
    *,
    codec: str | None = None,
    limits: DiskLimits | None = None,
    encryption_key_file: Path | None = None,
    remote: str | None = None,
    shared_namespace: str = "",
) -> StoreSettings:
    """The options as settings. Raises ConfigError, PathNotFoundError."""
    if encryption_key_file is not None:
        from ragblend.store.encryption import Cipher

        Cipher.from_file(encryption_key_file)  # refused before a model is loaded
    return StoreSettings(
        codec=codec,
        disk=limits,
        encryption_key_file=encryption_key_file,
        remote="" if remote == _NONE else remote,
        shared_namespace=shared_namespace,
    )


def tell_remote(library: Library) -> None:
    """Let the remote tier know what has changed, before the process ends; what it cannot know yet is kept."""
    if not library.store.flush(_LONGEST_FLUSH_S):
        pending = library.info().store.pending
        stderr().print(f"{pending:,} changes wait for the remote tier: they go there next time", style="yellow")


def _recorded(folder: Path, namespace: str) -> DiskLimits:
    from ragblend.library import layout
    from ragblend.library.storage import recorded_limits
    from ragblend.store.catalogue import Catalogue, is_made

    path = folder / layout.CATALOGUE
    if not is_made(path):
        return DiskLimits()
    catalogue = Catalogue(path, read_only=True)
    try:
        return recorded_limits(catalogue, namespace)
    finally:
        catalogue.close()


def _bytes_or_none(text: str) -> int | None:
    return None if text == _NONE else byte_count(text)


def _days(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ConfigError(f"{text!r} is no number of days: write it as 30, or none") from error
