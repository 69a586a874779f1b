"""README and docs say what is there: the Python runs, the commands parse, the links lead somewhere."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from ragblend import Engine, Library, MemoryStore, Segment
from ragblend.blend.blender import blend
from ragblend.blend.policies import PLUGIN_GROUP
from ragblend.cli.app import app
from tests import tiny

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md")))


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def commands() -> Iterator[list[str]]:
    """The words behind ``ragblend`` of each command line in the pages' blocks."""
    for page in PAGES:
        for line in "".join(blocks(page, "console")).splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            if words[:1] == ["ragblend"]:
                yield words[1:]


@pytest.mark.real_model
def test_the_python_of_the_readme_runs(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "warranty.md").write_text("# Warranty\n\nThe warranty of the Heron robot lasts six years.\n")
    (script,) = blocks(ROOT / "README.md", "python")
    finished = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert "six years" in finished.stdout
    assert "warranty.md" in finished.stdout
    assert "Usage(prompt_tokens=" in finished.stdout
    assert "Timings(retrieve_s=" in finished.stdout


def test_the_python_of_the_page_on_caching_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny.family("llama", max_position_embeddings=4096, num_hidden_layers=2)
    engine = Engine.from_model(model, tiny.tokenizer())
    (script,) = blocks(ROOT / "docs" / "caching.md", "python")
    with Library.open(tmp_path / "docs.rag", engine=engine) as library:
        exec(script, {"library": library, "engine": engine})
    printed = capsys.readouterr().out
    assert "kept=True" in printed
    assert "cache_read_input_tokens" in printed


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_the_commands_in_the_pages_parse(words: list[str]) -> None:
    """Every option is one that the command has, and none is missing; nothing is run."""
    command = typer.main.get_command(app)
    while hasattr(command, "commands"):
        name, *words = words
        command = command.commands[name]
    command.make_context(command.name, list(words))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_recipe_of_the_makefile_that_a_page_names_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    consoles = "".join(block for page in PAGES for block in blocks(page, "console"))
    named = set(re.findall(r"^\$ make ([a-z]+)", consoles, re.MULTILINE))
    assert {"demo", "test"} <= named
    assert {name for name in named if not re.search(rf"^{name}:", makefile, re.MULTILINE)} == set()


def test_the_policy_in_contributing_recomputes_its_share(tiny_engine: Engine) -> None:
    names: dict[str, Any] = {}
    exec("\n".join(blocks(ROOT / "CONTRIBUTING.md", "python")), names)
    chunks = [Segment("chunk", tiny.random_ids(30, seed), key=str(seed)) for seed in range(3)]
    store = MemoryStore(budget_bytes=1 << 30)
    for chunk, kv in zip(chunks, tiny_engine.prefill([chunk.token_ids for chunk in chunks]), strict=True):
        store.put(chunk.key or "", kv)
    prompt = tiny_engine.template.build(chunks, "What?")
    policy = names["RandomTokens"]()
    blended = blend(tiny_engine.adapter, tiny_engine.anchor, prompt, policy=policy, ratio=0.5, store=store)
    assert blended.recomputed == 45  # half of the three chunks
    assert f'"{PLUGIN_GROUP}"' in "".join(blocks(ROOT / "CONTRIBUTING.md", "toml"))


def test_the_picture_is_drawn_by_its_script(tmp_path: Path) -> None:
    script, drawn = ROOT / "docs" / "draw_how_it_works.py", tmp_path / "drawn.png"
    subprocess.run([sys.executable, script, drawn], check=True)
    header = slice(0, 24)  # the signature, then width and height
    assert drawn.read_bytes()[header] == (ROOT / "docs" / "how-it-works.png").read_bytes()[header]
