"""Running the command line in the process, on a tiny model in a folder and two documents."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from transformers.utils import logging as transformers_logging

from ragblend.cli import main
from tests import tiny

CHUNK_TOKENS = "64"


@dataclass(frozen=True)
class Result:
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON object on stdout."""
        return json.loads(self.out)


Run = Callable[..., Result]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run_it(*arguments: object) -> Result:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return Result(int(ended.value.code or 0), printed.out, printed.err)

    return run_it


@pytest.fixture(autouse=True, scope="session")
def no_progress_bars() -> Iterator[None]:
    """The command line asks for this before it imports transformers, which here has been imported long ago."""
    transformers_logging.disable_progress_bar()
    yield
    transformers_logging.enable_progress_bar()


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading a model is a failure of the test."""

    def refuse(*_: object) -> None:
        pytest.fail("a model was loaded before the mistake was noticed")

    monkeypatch.setattr("ragblend.engine.load_model", refuse)


def save_tiny_model(folder: Path, seed: int = 0) -> Path:
    model = tiny.family("llama", seed, max_position_embeddings=1024)
    model.save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("models") / "other", seed=1)


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "warranty.md").write_text("# Warranty\n\nThe warranty of the robot lasts two years.\n")
    (folder / "battery.md").write_text("# Battery\n\nThe battery is charged in ninety minutes. It lasts for an hour.\n")
    return folder


@pytest.fixture(scope="session")
def indexed(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """A folder with ``docs`` and the library ``docs.rag`` made of it. Tests that change it take ``library``."""
    root = tmp_path_factory.mktemp("indexed")
    (root / "docs").mkdir()
    for name, fact in (("warranty", "two years"), ("battery", "an hour"), ("blades", "one spring")):
        (root / "docs" / f"{name}.md").write_text(f"# The {name}\n\nThe {name} of the robot lasts {fact}.\n")
    arguments = ["index", root / "docs", "--library", root / "docs.rag", "--model", model]
    with pytest.raises(SystemExit, match="0"):
        main([*map(str, arguments), "--chunk-tokens", CHUNK_TOKENS])
    return root


@pytest.fixture
def library(indexed: Path, tmp_path: Path) -> Path:
    """A copy of the indexed library, to be changed."""
    return Path(shutil.copytree(indexed / "docs.rag", tmp_path / "copy.rag"))
