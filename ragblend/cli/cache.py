"""``ragblend cache stats``, ``list`` and ``clear``: what a library keeps of prompts' beginnings, and what it saved."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ragblend.cli.options import Debug, EncryptionKeyFile, Json, LibraryFolder, Namespace
from ragblend.cli.output import counted, emit, megabytes, stdout, table
from ragblend.cli.storage import store_settings
from ragblend.config import DEFAULT_NAMESPACE
from ragblend.usage import CostReport, Prices

if TYPE_CHECKING:
    from ragblend.library.library import Library
    from ragblend.prefix.statistics import PrefixUse

app = typer.Typer(help="Look at the prefix cache of a library, and clear it.", no_args_is_help=True)
_SHOWN_HOURS = 24
_PRICES = Prices()


@app.command()
def stats(
    library: LibraryFolder,
    namespace: Namespace = DEFAULT_NAMESPACE,
    price_input: Annotated[float, typer.Option(help="Price of a million prompt tokens.")] = _PRICES.input,
    price_output: Annotated[float, typer.Option(help="Price of a million answer tokens.")] = _PRICES.output,
    price_write_5m: Annotated[
        float, typer.Option(help="Of tokens kept for five minutes or as there is room, times the input price.")
    ] = _PRICES.write_5m,
    price_write_1h: Annotated[
        float, typer.Option(help="Of tokens kept for an hour, times the input price.")
    ] = _PRICES.write_1h,
    price_read: Annotated[float, typer.Option(help="Of tokens read, times the input price.")] = _PRICES.read,
    price_storage_hour: Annotated[
        float, typer.Option(help="Of a million tokens in a named cache for an hour, times the input price.")
    ] = _PRICES.storage_hour,
    encryption_key_file: EncryptionKeyFile = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Hit rate over time, the prefixes that saved most, and what was saved. No text is shown.

    Prices are in any currency. Storage counts named caches that there are, since they were made.
    """
    prices = Prices(
        input=price_input,
        output=price_output,
        write_5m=price_write_5m,
        write_1h=price_write_1h,
        read=price_read,
        storage_hour=price_storage_hour,
    )
    with _opened(library, namespace, encryption_key_file, read_only=True) as opened:
        found, named = opened.prefixes.statistics(), opened.named_caches.all()
    sums = found.total
    cost = CostReport.from_totals(
        prompt=sums.prompt_tokens,
        read=sums.read_tokens,
        written=sums.written_tokens,
        written_1h=sums.written_1h_tokens,
        completion=sums.completion_tokens,
        prices=prices,
        storage_token_hours=sum(cache.token_hours(time.time()) for cache in named),
    )
    if json:
        hours = [
            {"hour": hour.hour * 3600, "requests": hour.requests, "hit_rate": hour.hit_rate} for hour in found.hours
        ]
        emit({"statistics": found, "hit_rate": sums.hit_rate, "over_time": hours, "cost": cost, "saved": cost.saved})
        return
    rows = [
        ("requests", f"{sums.requests:,}, {sums.hits:,} of them with a hit"),
        ("prompt tokens", f"{sums.prompt_tokens:,}, {sums.hit_rate:.0%} of them read from the cache"),
        (
            "kept",
            f"{counted(found.prefixes, 'prefix', 'prefixes')}, {found.tokens:,} tokens, {megabytes(found.disk_bytes)}",
        ),
        ("cost", f"{cost.cost:.4f}, without the cache {cost.cost_without_cache:.4f}"),
    ]
    stdout().print(table(["", ""], rows))
    hours_shown = [
        (f"{datetime.fromtimestamp(hour.hour * 3600):%Y-%m-%d %H:00}", f"{hour.requests:,}", f"{hour.hit_rate:.0%}")
        for hour in found.hours[-_SHOWN_HOURS:]
    ]
    if hours_shown:
        stdout().print(table(["hour", "requests", "hit rate"], hours_shown))
    if found.top:
        stdout().print(_prefix_table(found.top))


@app.command("list")
def list_kept(
    library: LibraryFolder,
    namespace: Namespace = DEFAULT_NAMESPACE,
    encryption_key_file: EncryptionKeyFile = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """What is kept, last used first, and the named caches. No text is shown."""
    with _opened(library, namespace, encryption_key_file, read_only=True) as opened:
        kept, named = opened.prefixes.prefixes(), opened.named_caches.all()
    caches: list[dict[str, Any]] = [
        {
            "id": cache.id,
            "name": cache.name,
            "tokens": cache.tokens,
            "ttl_s": cache.ttl_s,
            "expires_at": cache.expires_at,
        }
        for cache in named
    ]
    if json:
        emit({"prefixes": kept, "caches": caches})
        return
    if caches:
        rows = [(cache["name"], f"{cache['tokens']:,}", _moment(cache["expires_at"])) for cache in caches]
        stdout().print(table(["named cache", "tokens", "expires"], rows))
    stdout().print(_prefix_table(kept) if kept else "nothing is kept")


@app.command()
def clear(
    library: LibraryFolder,
    namespace: Namespace = DEFAULT_NAMESPACE,
    encryption_key_file: EncryptionKeyFile = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Delete everything that the namespace's prefix cache keeps, named caches too. Chunks stay."""
    with _opened(library, namespace, encryption_key_file) as opened:
        named = opened.named_caches.all()
        for cache in named:
            opened.named_caches.remove(cache)
        cleared = opened.prefixes.clear()
        opened.prefixes.flush()
    if json:
        emit({"cleared": cleared, "caches": len(named)})
    else:
        gone = [counted(cleared, "prefix", "prefixes"), *([counted(len(named), "named cache")] if named else [])]
        stdout().print(f"{' and '.join(gone)} deleted")


def _prefix_table(kept: Sequence[PrefixUse]) -> Any:
    rows = [
        (
            prefix.id,
            f"{prefix.tokens:,}",
            "exact" if prefix.exact else "blended",
            f"{prefix.reads:,}",
            f"{prefix.saved_tokens:,}",
            _moment(prefix.used_at),
        )
        for prefix in kept
    ]
    return table(["prefix", "up to token", "", "reads", "tokens saved", "last used"], rows)


def _moment(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds).astimezone():%Y-%m-%d %H:%M}"


def _opened(folder: Path, namespace: str, key_file: Path | None, *, read_only: bool = False) -> Library:
    from ragblend.library.library import Library

    store = store_settings(encryption_key_file=key_file)
    return Library.open(folder, namespace=namespace, create=False, read_only=read_only, store=store)
