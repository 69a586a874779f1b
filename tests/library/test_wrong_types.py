"""Arguments of the wrong type: a ConfigError that says what was given, not an error of the interpreter."""

from __future__ import annotations

import pytest

from ragblend import Engine, Library
from ragblend.errors import ConfigError, PathNotFoundError, StoreError


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"question": None}, "the question must be text, got NoneType"),
        ({"question": "x", "k": "3"}, "k must be a whole number, got '3'"),
        ({"question": "x", "k": 2.0}, "k must be a whole number, got 2.0"),
        ({"question": "x", "k": True}, "k must be a whole number, got True"),
        ({"question": "x", "k": 0}, "k must be at least 1, got 0"),
        ({"question": "x", "ratio": "0.1"}, "ratio must be auto or between 0 and 1, got '0.1'"),
        ({"question": "x", "ratio": True}, "got True"),
        ({"question": "x", "policy": []}, r"policy must be text, got \[\]"),
        ({"question": "x", "generation": 5}, "generation must be GenerationSettings, got 5"),
        ({"question": "half a character: \ud800"}, "the question must be valid Unicode"),
    ],
)
def test_ask(library, docs, options, problem):
    library.add([docs])
    with pytest.raises(ConfigError, match=problem):
        library.ask(**options)


@pytest.mark.parametrize("paths", [5, [1, 2], [None]])
def test_add(library, paths):
    with pytest.raises(ConfigError, match="give a path, or a list of paths"):
        library.add(paths)


def test_paths_may_come_one_by_one(library, docs):
    assert library.add(docs.glob("*.md")).indexed == 2


def test_models_and_folders():
    with pytest.raises(ConfigError, match="the model must be a path or a name, got 5"):
        Engine(5)
    with pytest.raises(ConfigError, match="the library's path must be a path, got 5"):
        Library.open(5)


def test_namespaces_and_engines(tmp_path):
    for namespace, problem in ((5, "must be text, got int"), ("", "is empty"), ("x\udcff", "valid Unicode")):
        with pytest.raises(ConfigError, match=f"the namespace {problem}" if problem == "is empty" else problem):
            Library.open(tmp_path / "docs.rag", namespace=namespace)
    with pytest.raises(ConfigError, match=r"the engine must be an Engine, such as Engine\('x'\)"):
        Library.open(tmp_path / "docs.rag", engine="x")


def test_a_name_that_is_not_text(library, docs, tmp_path):
    """Given by itself, as inside a folder: skipped, and removing it says that it is not there."""
    odd = tmp_path / "bad\udcff.txt"
    odd.write_text("The warranty lasts two years.")
    library.add([docs])
    [skipped] = library.add([odd]).skipped
    assert skipped.reason == "its name is not valid UTF-8"
    with pytest.raises(PathNotFoundError, match="not in the library"):
        library.remove([odd])


def test_a_closed_library(library, docs):
    library.add([docs])
    library.close()
    with pytest.raises(StoreError, match="is closed: open it again"):
        library.search("warranty")
