"""GGUF files become folders that transformers loads, whatever interrupts the conversion."""

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ragblend.errors import ModelError, PathNotFoundError
from ragblend.models.convert import ABANDONED_AFTER_S, converted_gguf, partial_folder, publish, remove_abandoned

WIDTH, HEADS, LAYERS, CONTEXT = 32, 2, 2, 64
TOKENS = [
    "<|endoftext|>",
    "<|start|>",
    "<|end|>",
    *(chr(code) for code in range(ord("!"), ord("~") + 1)),
    "Ġ",
    "ab",
    "cd",
]


def write_tiny_gguf(path: Path, seed: int = 0) -> Path:
    """A llama of random weights with a byte-level vocabulary, in the GGUF format."""
    random = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(2 * WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (len(TOKENS) - 3))
    writer.add_token_merges(["a b", "c d"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    shapes = {"token_embd": (len(TOKENS), WIDTH), "output_norm": (WIDTH,)}
    for layer in range(LAYERS):
        attention = {f"blk.{layer}.attn_{part}": (WIDTH, WIDTH) for part in ("q", "k", "v", "output")}
        norms = {f"blk.{layer}.{part}_norm": (WIDTH,) for part in ("attn", "ffn")}
        up = {f"blk.{layer}.ffn_{part}": (2 * WIDTH, WIDTH) for part in ("gate", "up")}
        shapes |= attention | norms | up | {f"blk.{layer}.ffn_down": (WIDTH, 2 * WIDTH)}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", random.normal(size=shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def use_cache(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """Keep conversions in ``folder``; returns where they will be."""
    monkeypatch.setenv("RAGBLEND_CACHE_DIR", str(folder))
    return folder / "models"


def start_converting(file: Path) -> subprocess.Popen[str]:
    """A process that converts ``file`` and prints the folder."""
    script = (
        "import sys, pathlib\nfrom ragblend.models.convert import *\nprint(converted_gguf(pathlib.Path(sys.argv[1])))"
    )
    command = [sys.executable, "-c", script, str(file)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return use_cache(monkeypatch, tmp_path / "cache")


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="module")
def converted_cache(tiny_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache in which ``tiny_gguf`` has been converted: a conversion takes seconds."""
    folder = tmp_path_factory.mktemp("converted")
    with pytest.MonkeyPatch.context() as patch:
        use_cache(patch, folder)
        converted_gguf(tiny_gguf)
    return folder


def test_converted_model_has_the_weights_and_tokens_of_the_file(tiny_gguf: Path, converted_cache: Path) -> None:
    [folder] = (converted_cache / "models").iterdir()
    expected = AutoModelForCausalLM.from_pretrained(tiny_gguf.parent, gguf_file=tiny_gguf.name, dtype=torch.float32)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.bfloat16
    assert getattr(model.config, "quantization_config", None) is None
    for name, tensor in expected.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor.to(torch.bfloat16)), name

    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|start|>", "<|end|>")
    assert tokenizer.decode(tokenizer("two words", add_special_tokens=False)["input_ids"]) == "two words"


def test_second_time_comes_from_the_cache(
    tiny_gguf: Path, converted_cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    use_cache(monkeypatch, converted_cache)
    before = {path: path.stat().st_mtime_ns for path in converted_cache.rglob("*")}
    assert converted_gguf(tiny_gguf).parent == converted_cache / "models"
    assert {path: path.stat().st_mtime_ns for path in converted_cache.rglob("*")} == before
    assert not caplog.records


def test_killed_conversion_leaves_nothing_that_counts(tiny_gguf: Path, cache: Path) -> None:
    process = start_converting(tiny_gguf)
    while not list(cache.glob(".partial-*")):
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.communicate()
    [abandoned] = cache.iterdir()

    remove_abandoned(cache)
    assert abandoned.is_dir(), "another process may still be writing to it"
    long_ago = time.time() - ABANDONED_AFTER_S - 1
    os.utime(abandoned, (long_ago, long_ago))
    remove_abandoned(cache)
    assert list(cache.iterdir()) == []


def test_two_processes_convert_at_once(tmp_path: Path, converted_cache: Path, cache: Path) -> None:
    """Both get the same folder. Its name tells the content: another file of the same name has another."""
    file = write_tiny_gguf(tmp_path / "tiny.gguf", seed=1)
    processes = [start_converting(file), start_converting(file)]
    first, second = (process.communicate()[0].strip() for process in processes)
    assert first == second
    assert [str(folder) for folder in cache.iterdir()] == [first]
    assert Path(first).name not in {folder.name for folder in (converted_cache / "models").iterdir()}


def test_interrupted_or_failed_work_is_removed(tmp_path: Path) -> None:
    def interrupted() -> None:
        with partial_folder(tmp_path) as partial:
            (partial / "model.safetensors").write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_full_disk_names_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="No space left on device; free some space"), partial_folder(tmp_path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_whoever_publishes_first_wins(tmp_path: Path) -> None:
    for text in ("first", "second"):
        with partial_folder(tmp_path) as partial:
            (partial / "config.json").write_text(text)
            publish(partial, tmp_path / "model")
    assert (tmp_path / "model" / "config.json").read_text() == "first"
    assert list(tmp_path.iterdir()) == [tmp_path / "model"]


def test_missing_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(PathNotFoundError, match="no such file"):
        converted_gguf(tmp_path / "missing.gguf")


def test_other_files_are_refused(tmp_path: Path, cache: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"not a model")
    with pytest.raises(ModelError, match="is not a GGUF file"):
        converted_gguf(file)
    assert not cache.exists()


def test_damaged_file_gives_one_line_and_leaves_nothing(tiny_gguf: Path, tmp_path: Path, cache: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(tiny_gguf.read_bytes()[:2000])
    with pytest.raises(ModelError, match="could not be converted") as caught:
        converted_gguf(damaged)
    assert "\n" not in str(caught.value)
    assert list(cache.iterdir()) == []
