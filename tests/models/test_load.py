"""Loading a model runs no code of its own, unpickles nothing, and fails in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from ragblend.errors import ConfigError, ModelError
from ragblend.models.load import choose_device, choose_dtype, load_model
from tests import tiny


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny.family("llama").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_model_without_a_tokenizer_is_loaded_for_the_gate(folder: Path) -> None:
    loaded = load_model(folder, "cpu", "float32")
    assert loaded.tokenizer is None
    assert (loaded.name, loaded.reference) == ("model", str(folder))
    assert loaded.model.dtype == torch.float32


def test_tokenizer_comes_along(folder: Path) -> None:
    tiny.tokenizer().save_pretrained(folder)
    assert load_model(str(folder)).tokenizer.eos_token == "<|end|>"


def test_code_of_a_model_is_refused_without_asking(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text("raise SystemExit('executed')")
    with pytest.raises(ModelError, match="custom code"):
        load_model(folder)
    assert capsys.readouterr().out == ""


def test_pickled_weights_are_not_read(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="safetensors"):
        load_model(folder)


def test_damaged_weights_are_one_line(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ModelError, match="model cannot be loaded") as caught:
        load_model(folder)
    assert "\n" not in str(caught.value)


def test_unknown_device_and_dtype_are_usage_errors() -> None:
    with pytest.raises(ConfigError, match="device 'abacus' is not available"):
        choose_device("abacus")
    with pytest.raises(ConfigError, match="unknown dtype 'int3'"):
        choose_dtype("int3", torch.device("cpu"))
