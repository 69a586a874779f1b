"""Draws docs/how-it-works.png: ``python docs/draw_how_it_works.py [FILE]``. Needs matplotlib (the extra ``plot``)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

INK, QUIET, LANE, EMPTY = "#22262e", "#68707d", "#f4f5f7", "#ffffff"
ANCHOR, COMPUTED = "#9aa1ad", "#cf4446"
CHUNKS = {"A": "#4a83c4", "B": "#e2a33f", "C": "#4da57a", "D": "#9f72b5"}
ORDER = ("C", "A", "D")
CHUNK_TOKENS, LAYERS, CELL, STEP = 4, 4, 0.72, 0.86
COLUMNS = [2.0 + 16.3 * column for column in range(6)]
PROMPT = [ANCHOR] * 2 + [CHUNKS[name] for name in ORDER for _ in range(CHUNK_TOKENS)] + [EMPTY] * 3
SELECTED = (7, 8, 12)
INDEXING, LIBRARY, ASKING = 40.5, 28.8, 3.4


def main() -> None:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("how-it-works.png")
    plt.rcParams.update({"font.family": "DejaVu Sans", "svg.fonttype": "none"})
    figure, axes = plt.subplots(figsize=(14, 8.4))
    axes.set(xlim=(0, 100), ylim=(0, 60))
    axes.set_axis_off()
    figure.subplots_adjust(left=0, right=1, bottom=0, top=1)
    draw_indexing(axes)
    draw_library(axes)
    draw_asking(axes)
    figure.savefig(target, dpi=150, facecolor="white")


def draw_indexing(axes: Axes) -> None:
    lane(axes, INDEXING, 18.2, "Indexing", "once for each document")
    top = INDEXING + 12.2
    step(axes, COLUMNS[0], top, "Document", "text, Markdown, HTML, PDF")
    page(axes, COLUMNS[0] + 3.4, INDEXING + 1.7)
    step(axes, COLUMNS[1], top, "Chunks", "whole paragraphs,\nelse sentences")
    step(
        axes,
        COLUMNS[2],
        top,
        "Prefill behind the anchor",
        "every chunk follows the same fixed prefix,\nas if it came first in a prompt",
    )
    step(
        axes,
        COLUMNS[4],
        top,
        "Keep the chunk's own rows",
        "keys are rotated back to position 0:\ntheir canonical form, good for any place",
    )
    for row, name in enumerate(CHUNKS):
        y = INDEXING + 7.4 - 2.1 * row
        colours = [CHUNKS[name]] * CHUNK_TOKENS
        cells(axes, COLUMNS[1] + 3, y, colours)
        label(axes, COLUMNS[1] + 1.3, y + CELL / 2, name)
        cells(axes, COLUMNS[2] + 6, y, [ANCHOR] * 2 + colours)
        cells(axes, COLUMNS[4] + 6, y, colours)
    label(axes, COLUMNS[2] + 5.4, INDEXING + 1.1 + CELL / 2, "anchor", ha="right", color=QUIET, size=9.5)
    for start, end in ((12.4, 18.6), (25.7, 39.8), (46.8, 72.2)):
        arrow(axes, (start, INDEXING + 4.6), (end, INDEXING + 4.6))


def draw_library(axes: Axes) -> None:
    for x, width, title, note in (
        (2.0, 29.0, "Embeddings", "one vector a chunk, searched by FAISS"),
        (34.6, 63.4, "Chunk KV on disk", "keys and values, one file a chunk, one read a layer"),
    ):
        axes.add_patch(
            FancyBboxPatch(
                (x, LIBRARY), width, 6.4, boxstyle="round,pad=0,rounding_size=0.7", fc="white", ec=INK, lw=1.3
            )
        )
        label(axes, x + 1.4, LIBRARY + 4.4, title, weight="bold", size=11)
        label(axes, x + 1.4, LIBRARY + 2.0, note, color=QUIET, size=9.5)
    label(axes, 32.8, LIBRARY + 3.2, "+", ha="center", size=15, color=QUIET)
    label(axes, 96.6, LIBRARY + 3.2, "the library, one folder", ha="right", size=10.5, color=QUIET, style="italic")
    for number, colour in enumerate(CHUNKS.values()):
        for layer in range(LAYERS):
            cells(axes, 79 - 4.2 * (3 - number), LIBRARY + 1.7 + 0.86 * layer, [colour] * 3)
    arrow(axes, (COLUMNS[1] + 4.6, INDEXING + 0.5), (COLUMNS[1] + 4.6, LIBRARY + 6.7))
    label(axes, COLUMNS[1] + 5.4, INDEXING - 2.5, "embed", color=QUIET, size=9.5)
    arrow(axes, (COLUMNS[4] + 7.5, INDEXING + 0.5), (COLUMNS[4] + 7.5, LIBRARY + 6.7))
    label(axes, COLUMNS[4] + 8.3, INDEXING - 2.5, "write", color=QUIET, size=9.5)


def draw_asking(axes: Axes) -> None:
    lane(axes, ASKING, 22.0, "Asking", "for each question")
    top, base = ASKING + 16.0, ASKING + 6.6
    titles = (
        ("1  Search", "the chunks nearest\nto the question", "library/retrieval.py"),
        ("2  Plan", "what stands where,\nwhat is stored", "blend/plan.py"),
        ("3  Place", "copy the KV, rotate keys\nto their positions", "blend/loader.py"),
        ("4  Select", "tokens that the question\nattends to (or another policy)", "blend/policies/"),
        ("5  Recompute", "these and the question,\nthrough all layers", "models/adapter.py"),
        ("6  Decode", "on the same canvas,\ntoken by token", "generate.py"),
    )
    for x, (title, note, module) in zip(COLUMNS, titles, strict=True):
        step(axes, x, top, title, note)
        label(axes, x, ASKING + 1.4, module, color=QUIET, size=8.5, family="DejaVu Sans Mono")
    label(axes, COLUMNS[0], base + 4.4, "“How long is\nthe warranty?”", size=9.5, style="italic")
    for row, name in enumerate(ORDER):
        cells(axes, COLUMNS[0] + 1.5, base + 1.0 - 1.5 * row, [CHUNKS[name]] * CHUNK_TOKENS)
        label(axes, COLUMNS[0] + 0.1, base + 1.35 - 1.5 * row, name)
        label(axes, COLUMNS[0] + 5.6, base + 1.35 - 1.5 * row, ("0.71", "0.64", "0.52")[row], color=QUIET, size=9)
    outlines(axes, COLUMNS[1], base)
    canvas(axes, COLUMNS[2], base)
    canvas(axes, COLUMNS[3], base, chosen=SELECTED)
    canvas(axes, COLUMNS[4], base, computed=(*SELECTED, 14, 15, 16))
    for number, word in enumerate(("Six", "years", ".")):
        width = (3.0, 4.6, 1.7)[number]
        x = COLUMNS[5] + (0.0, 3.4, 8.4)[number]
        axes.add_patch(
            FancyBboxPatch(
                (x, base + 1.0), width, 2.3, boxstyle="round,pad=0,rounding_size=0.4", fc=COMPUTED, ec="none"
            )
        )
        label(axes, x + width / 2, base + 2.15, word, ha="center", color="white", weight="bold")
    for x, what in ((COLUMNS[0] + 3.2, "nearest vectors"), (COLUMNS[2] + 7.0, "KV of C, A and D")):
        arrow(axes, (x, LIBRARY - 0.3), (x, ASKING + 22.1))
        label(axes, x + 0.9, LIBRARY - 1.6, what, color=QUIET, size=9.5)
    legend(axes)


def legend(axes: Axes) -> None:
    entries = (
        (ANCHOR, "the anchor: reused, exact"),
        (CHUNKS["C"], "a chunk: reused; exact where it stands right behind the anchor"),
        (COMPUTED, "computed for this question"),
    )
    for x, (colour, meaning) in zip((2.0, 27.5, 71.5), entries, strict=True):
        cells(axes, x, 1.2, [colour])
        label(axes, x + 1.5, 1.55, meaning, size=9.5)


def outlines(axes: Axes, x: float, y: float) -> None:
    """The prompt as a row of empty places, named."""
    for index, colour in enumerate(PROMPT):
        edge = QUIET if colour == EMPTY else colour
        axes.add_patch(Rectangle((x + STEP * index * 0.9, y + 1.4), CELL * 0.9, CELL, fc="white", ec=edge, lw=1.4))
    for place, name in zip((4, 8, 12, 15.5), (*ORDER, "?"), strict=True):
        label(axes, x + STEP * 0.9 * place - 0.1, y + 3.2, name, ha="center")
    label(axes, x, y + 0.2, "0", size=8.5, color=QUIET)
    label(axes, x + STEP * 0.9 * 17, y + 0.2, "T-1", size=8.5, color=QUIET, ha="right")


def canvas(axes: Axes, x: float, y: float, chosen: Sequence[int] = (), computed: Sequence[int] = ()) -> None:
    """The request's KV buffers: a column a token, a row a layer. Chosen tokens get arcs from the question."""
    for index, colour in enumerate(PROMPT):
        for layer in range(LAYERS):
            fill = COMPUTED if index in computed else colour
            edge = "#c4c8cf" if fill == EMPTY else fill
            axes.add_patch(
                Rectangle((x + STEP * 0.9 * index, y - 0.6 + STEP * layer), CELL * 0.9, CELL, fc=fill, ec=edge, lw=0.7)
            )
    top = y - 0.6 + STEP * LAYERS
    middle = CELL * 0.9 / 2
    for index in chosen:
        start, end = (x + STEP * 0.9 * 15 + middle, top + 0.1), (x + STEP * 0.9 * index + middle, top + 0.1)
        axes.add_patch(
            FancyArrowPatch(
                start, end, connectionstyle="arc3,rad=0.35", arrowstyle="-|>", mutation_scale=9, color=COMPUTED
            )
        )
        axes.add_patch(
            Rectangle(
                (end[0] - middle - 0.1, y - 0.75), CELL * 0.9 + 0.2, STEP * LAYERS + 0.1, fc="none", ec=COMPUTED, lw=1.6
            )
        )


def lane(axes: Axes, y: float, height: float, title: str, note: str) -> None:
    axes.add_patch(
        FancyBboxPatch((0.8, y), 98.4, height, boxstyle="round,pad=0,rounding_size=0.9", fc=LANE, ec="none", zorder=0)
    )
    text = axes.text(2.0, y + height - 1.9, title, fontsize=15, weight="bold", color=INK, va="center")
    axes.annotate(
        note, (1, 0.5), xycoords=text, xytext=(9, -1), textcoords="offset points", fontsize=11, color=QUIET, va="center"
    )


def step(axes: Axes, x: float, y: float, title: str, note: str) -> None:
    label(axes, x, y + 1.2, title, weight="bold", size=11)
    axes.text(x, y, note, fontsize=9.5, color=QUIET, va="top", linespacing=1.35)


def label(axes: Axes, x: float, y: float, text: str, size: float = 10, **style: str) -> None:
    axes.text(x, y, text, fontsize=size, **{"color": INK, "va": "center", **style})  # type: ignore[arg-type]


def cells(axes: Axes, x: float, y: float, colours: Sequence[str]) -> None:
    """A row of tokens, one cell each."""
    for index, colour in enumerate(colours):
        axes.add_patch(Rectangle((x + STEP * index, y), CELL, CELL, fc=colour, ec="none"))


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    axes.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=14, color=INK, lw=1.3))


def page(axes: Axes, x: float, y: float) -> None:
    """A sheet of text."""
    axes.add_patch(Rectangle((x, y), 6.0, 8.2, fc="white", ec=INK, lw=1.2))
    lines = [colour for colour in CHUNKS.values() for _ in range(2)]
    for number, colour in enumerate(lines):
        width = 4.6 if number % 2 == 0 else 3.6
        axes.add_patch(Rectangle((x + 0.7, y + 7.1 - 0.9 * number), width, 0.34, fc=colour, ec="none"))


if __name__ == "__main__":
    main()
