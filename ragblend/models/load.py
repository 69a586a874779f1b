"""Loading a model and its tokenizer: where, in which dtype, and who they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging

from ragblend.errors import ConfigError, ModelError
from ragblend.models.source import clear_load_errors, resolve_model

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """tokenizer is None where the model's folder has none (enough for the gate). reference: see ``ModelSource``."""

    model: PreTrainedModel
    tokenizer: Any
    name: str
    reference: str


def load_model(model: str | Path | None, device: str = "auto", dtype: str = "auto") -> LoadedModel:
    """Load ``model`` (None, a folder, a ``.gguf`` file or a Hub id) for inference.

    Raises PathNotFoundError, ModelError, ConfigError (device or dtype).
    """
    where = choose_device(device)
    chosen_dtype = choose_dtype(dtype, where)
    source = resolve_model(model)
    with clear_load_errors(source.name), without_progress_bars():
        # Neither code that comes with a model nor weights that would have to be unpickled.
        loaded = AutoModelForCausalLM.from_pretrained(
            source.path_or_id, dtype=chosen_dtype, trust_remote_code=False, use_safetensors=True
        )
    try:
        loaded = loaded.to(where)  # type: ignore[arg-type]  # transformers types a decorated method
    except torch.OutOfMemoryError as error:
        raise ModelError(f"{source.name} does not fit on {where}: use a smaller model or device='cpu'") from error
    return LoadedModel(loaded, load_tokenizer(source.path_or_id), source.name, source.reference)


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Nothing on the terminal of a program that loads a model: transformers' bars come back afterwards."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def load_tokenizer(path_or_id: str) -> Any:
    """The tokenizer of a model, or None where it has none."""
    try:
        return AutoTokenizer.from_pretrained(path_or_id, trust_remote_code=False)
    except (OSError, ValueError):
        return None


def choose_device(device: str) -> torch.device:
    """``auto`` is cuda (or rocm) where there is one, else cpu. Raises ConfigError for one that is not there."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(f"device {device!r} is not available here ({error}): use 'auto' or 'cpu'") from error
    return chosen


def choose_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """``auto`` is bfloat16 where the hardware computes in it, else float32 on CPUs and float16 on GPUs."""
    if dtype != "auto":
        if dtype not in _DTYPES:
            raise ConfigError(f"unknown dtype {dtype!r}: choose auto, {', '.join(_DTYPES)}")
        return _DTYPES[dtype]
    if device.type == "cpu":
        capabilities = torch.cpu.get_capabilities()
        return torch.bfloat16 if capabilities.get("avx512_bf16") or capabilities.get("amx_bf16") else torch.float32
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    return torch.float16
