"""In which order found chunks stand in the prompt, and that sources stay best first."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from ragblend import Engine, Library
from ragblend.config import BlendSettings, ChunkOrder
from ragblend.errors import ConfigError
from ragblend.library.order import in_order
from ragblend.library.report import Hit
from ragblend.prompt import Segment
from ragblend.results import Source


def hit(document: str, chunk: int, score: float) -> Hit:
    source = Source(document, chunk, score, f"{document}{chunk}")
    return Hit(Segment("chunk", (1,), source=source), source, np.zeros(2, np.float32))


FOUND = [hit("b", 4, 0.9), hit("a", 2, 0.8), hit("b", 1, 0.7), hit("c", 0, 0.6), hit("a", 3, 0.5), hit("c", 1, 0.4)]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("best-first", ["b4", "a2", "b1", "c0", "a3", "c1"]),
        ("best-last", ["c1", "a3", "c0", "b1", "a2", "b4"]),
        ("document", ["c0", "c1", "a2", "a3", "b1", "b4"]),
    ],
)
def test_orders(order: ChunkOrder, expected: list[str]) -> None:
    assert [each.text for each in in_order(FOUND, order)] == expected
    assert in_order([], order) == []


def test_equal_scores_keep_their_places_so_that_the_same_ones_are_left_out() -> None:
    tied = [hit("a", 0, 0.9), hit("b", 0, 0.5), hit("c", 0, 0.5), hit("d", 0, 0.1)]
    assert [each.text for each in in_order(tied, "best-last")] == ["d0", "b0", "c0", "a0"]


@pytest.mark.parametrize("order", ["random", "", None, 3, ["best-last"], np.array(["best-last", "document"])])
def test_another_order_is_refused(order: object) -> None:
    for refuse in (lambda: BlendSettings(order=order), lambda: in_order(FOUND, order)):  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="order must be "):
            refuse()


@pytest.mark.parametrize("order", [None, *get_args(ChunkOrder)])
def test_asking_places_chunks_so_and_lists_sources_best_first(
    library: Library, docs: Path, order: ChunkOrder | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.add([docs])
    prompts = []
    monkeypatch.setattr(Engine, "stream", keeping(prompts, Engine.stream))
    hits = library.search("How long is the warranty?", 4)
    assert len({each.document for each in hits}) > 1, "else every order of documents is the same"
    answer = library.ask("How long is the warranty?", 4, order=order)
    expected = in_order(hits, order or "best-last")
    assert [chunk.source for chunk in prompts[0].chunks] == [each.source for each in expected]
    assert answer.sources == tuple(each.source for each in hits)


def test_the_engine_has_an_order_of_its_own(library: Library, docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library.add([docs])
    prompts = []
    monkeypatch.setattr(Engine, "stream", keeping(prompts, Engine.stream))
    monkeypatch.setattr(library.engine, "blend", BlendSettings(order="best-first"))
    library.ask("How long is the warranty?", 3)
    assert [chunk.source for chunk in prompts[0].chunks] == [
        each.source for each in library.search("How long is the warranty?", 3)
    ]


def keeping(prompts, stream):
    """``stream``, and what it was asked is kept."""

    def keep(self, prompt, **settings):
        prompts.append(prompt)
        return stream(self, prompt, **settings)

    return keep
