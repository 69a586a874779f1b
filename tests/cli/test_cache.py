"""The prefix cache from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from ragblend.config import GenerationSettings
from ragblend.engine import Engine
from ragblend.library.library import Library
from ragblend.prompt import Message
from tests.cli.conftest import Run

CANARY = "a cormorant called Wilhelmina"
PLAIN_PRICES = ["--price-write-5m", 1, "--price-write-1h", 1, "--price-read", 1]


def fill(library: Path, model: Path) -> None:
    """Two requests that begin alike, and a named cache."""
    with Library.open(library, engine=Engine(model)) as opened:
        for question in ("Which mower?", "Which trimmer?"):
            messages = [Message("system", (f"You are {CANARY}. " * 4,)), Message("user", (question,))]
            opened.chat(messages, generation=GenerationSettings(max_tokens=1)).complete()
        opened.engine.caches.create([Message("system", (f"You are {CANARY}, too. " * 5,))], name="bird")


def test_stats_list_and_clear(run: Run, library: Path, model: Path) -> None:
    fill(library, model)
    found = run("cache", "stats", "--library", library, "--json")
    assert found.json["statistics"]["total"]["requests"] >= 2
    assert 0 < found.json["hit_rate"] < 1
    assert found.json["over_time"][0]["requests"] >= 2
    assert found.json["statistics"]["top"][0]["saved_tokens"] > 0
    plain = run("cache", "stats", "--library", library, "--json", *PLAIN_PRICES)
    assert plain.json["saved"] == pytest.approx(0.0)
    stored = run("cache", "stats", "--library", library, "--json", *PLAIN_PRICES, "--price-storage-hour", 1e6)
    assert stored.json["saved"] < 0
    kept = run("cache", "list", "--library", library, "--json")
    assert [cache["name"] for cache in kept.json["caches"]] == ["bird"]
    assert all(prefix["on_disk"] for prefix in kept.json["prefixes"])
    texts = [run("cache", word, "--library", library).out for word in ("stats", "list")]
    assert "hit rate" in texts[0]
    assert all("Wilhelmina" not in text for text in (*texts, found.out, kept.out))
    cleared = run("cache", "clear", "--library", library, "--json").json
    assert cleared == {"cleared": len(kept.json["prefixes"]), "caches": 1}
    assert run("cache", "clear", "--library", library).out == "0 prefixes deleted\n"
    assert run("cache", "list", "--library", library, "--json").json == {"prefixes": [], "caches": []}
    assert run("verify", "--library", library).status == 0


def test_an_empty_cache_and_another_namespace(run: Run, library: Path, no_model: None) -> None:
    assert "nothing is kept" in run("cache", "list", "--library", library, "--namespace", "tenant").out
    for price in ("input", "output", "write-5m", "write-1h", "read", "storage-hour"):
        assert run("cache", "stats", "--library", library, f"--price-{price}", "-1").status == 2
    assert run("cache", "stats", "--library", library / "none").status == 2
