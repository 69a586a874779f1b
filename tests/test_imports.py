"""Imports run one way, and importing ragblend is cheap."""

import subprocess
import sys
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

import ragblend

ROOT = Path(__file__).parent.parent


def modules_after(statement: str) -> set[str]:
    """Names of the modules that are loaded once a fresh interpreter has run ``statement``."""
    script = f"import sys\n{statement}\nprint(*sys.modules, sep='\\n', file=sys.__stdout__)"
    finished = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(finished.stdout.split())


def test_the_contracts_of_pyproject_hold(capsys: pytest.CaptureFixture[str]) -> None:
    status = lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True)
    assert status == 0, capsys.readouterr().out


def test_import_loads_no_triton_and_no_model_library() -> None:
    loaded = modules_after("import ragblend")
    assert not loaded & {"triton", "transformers", "sentence_transformers", "faiss"}


def test_command_line_help_loads_no_torch() -> None:
    loaded = modules_after("from ragblend.cli import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass")
    assert not loaded & {"torch", "transformers", "sentence_transformers", "faiss"}


def test_every_public_name_is_there() -> None:
    assert {name for name in ragblend.__all__ if getattr(ragblend, name, None) is None} == set()
    assert set(ragblend.__all__) <= set(dir(ragblend))


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        ragblend.nothing  # noqa: B018
