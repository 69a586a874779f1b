"""All curves of ``ragblend bench growth``, and a plot of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ragblend.bench.growth.library import LibraryRow
from ragblend.bench.growth.requests import OURS, ProcessRow, RequestRow
from ragblend.bench.machine import Machine
from ragblend.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class GrowthReport:
    """contexts: at 256 tokens a chunk. chunks: at one context. Empty where it was not asked for.

    note: how the machine was, in the words of whoever ran it.
    """

    library: tuple[LibraryRow, ...]
    contexts: tuple[RequestRow, ...]
    chunks: tuple[RequestRow, ...]
    processes: tuple[ProcessRow, ...]
    note: str
    machine: Machine


def figure_class() -> type[Figure]:
    """What plots are drawn on. Raises ConfigError without matplotlib: better asked before measuring than after."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("plots need matplotlib: pip install 'ragblend[plot]', or leave --plots out") from error
    return Figure


def plot(report: GrowthReport, folder: Path) -> list[Path]:
    """Draw each curve that the report has into ``folder``. Raises ConfigError without matplotlib."""
    new_figure = figure_class()
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []

    def draw(name: str, title: str, across: str, up: str, lines: Mapping[str, Sequence[tuple[float, float]]]) -> None:
        given = {label: points for label, points in lines.items() if points}
        if not given:
            return
        figure = new_figure(figsize=(6, 4), layout="constrained")
        axes = figure.subplots()
        for label, points in given.items():
            axes.plot(*zip(*points, strict=True), marker="o", label=label)
        axes.set(title=title, xlabel=across, ylabel=up, xscale="log", yscale="log")
        axes.legend()
        axes.grid(alpha=0.3)
        target = folder / f"{name}.png"
        figure.savefig(target, dpi=120)
        drawn.append(target)

    rows = report.library
    times = ("open_s", "first_search_s", "search_s", "lookup_s")
    sizes = ("memory_bytes", "index_bytes", "catalogue_bytes")
    draw(
        "growth-library-time",
        "A growing library",
        "chunks",
        "seconds",
        {
            name.removesuffix("_s").replace("_", " "): [(row.chunks, getattr(row, name)) for row in rows]
            for name in times
        },
    )
    draw(
        "growth-library-size",
        "What a library takes, without KV",
        "chunks",
        "bytes",
        {name.removesuffix("_bytes"): [(row.chunks, max(1, getattr(row, name))) for row in rows] for name in sizes},
    )
    for name, across, points in (
        ("growth-context", "tokens of context", report.contexts),
        ("growth-chunks", "chunks of a question", report.chunks),
    ):
        systems = dict.fromkeys(row.system for row in points)
        lines = {
            system: [(_across(row, name), row.ttft_s) for row in points if row.system == system] for system in systems
        }
        draw(name, "Time to the first token", across, "seconds", lines)
    at_once = [(row.processes, row.requests_per_s) for row in report.processes]
    draw("growth-processes", "Requests a second", "processes", "requests a second", {OURS: at_once})
    return drawn


def _across(row: RequestRow, name: str) -> int:
    return row.context if name == "growth-context" else row.chunks
