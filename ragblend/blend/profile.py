"""How fast a model computes rows on this machine: measured once, and remembered in the user cache."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import transformers

from ragblend.blend.remembered import remember
from ragblend.config import cache_directory
from ragblend.models.adapter import DecoderAdapter
from ragblend.models.rows import RowRun
from ragblend.store.key import ModelIdentity, digest_fields

# Raise it when computing rows becomes faster or slower.
PROFILE_VERSION = 2
_FEW, _MANY = 32, 128
_SHORT, _LONG = 256, 2048
_REPEATS = 3


@dataclass(frozen=True, slots=True)
class Profile:
    """What one more row costs in a pass: so much, and so much for each key of the prompt. Seconds."""

    row_s: float
    key_s: float

    def seconds(self, rows: float, keys: int) -> float:
        """What ``rows`` rows cost over a prompt of ``keys`` tokens."""
        return rows * (self.row_s + self.key_s * keys)


def profile_of(adapter: DecoderAdapter, identity: ModelIdentity) -> Profile:
    """The model's profile with these versions on this machine: the remembered one, or a new one."""
    path = _path(adapter, identity)
    try:
        return Profile(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        profile = measure(adapter)
        remember(path, asdict(profile))
        return profile


def measure(adapter: DecoderAdapter) -> Profile:
    """Time passes of few and many rows over a short and a long canvas. Takes about a second."""
    lengths = [min(length, adapter.context_length) for length in (_SHORT, _LONG)]
    short, long = (_row_seconds(adapter, length) for length in lengths)
    key_s = max(0.0, (long - short) / (lengths[1] - lengths[0])) if lengths[1] > lengths[0] else 0.0
    return Profile(max(1e-9, short - key_s * lengths[0]), key_s)


def _row_seconds(adapter: DecoderAdapter, length: int) -> float:
    """What one more row costs at the end of ``length`` tokens: what a pass costs with no row is left out."""
    few, many = min(_FEW, length // 4), min(_MANY, length // 2)
    canvas = adapter.canvas(length)
    for layer in range(adapter.layer_count):
        canvas.keys(layer).normal_()
        canvas.values(layer).normal_()
    token_ids = torch.zeros(length, dtype=torch.int64, device=adapter.device)
    fastest = {few: float("inf"), many: float("inf")}
    for _ in range(_REPEATS + 1):  # the first warms up, and is seldom the fastest
        for count in fastest:
            rows = torch.arange(length - count, length, device=adapter.device)
            began = time.perf_counter()
            logits = adapter.forward_rows(canvas, token_ids, RowRun(rows, end=length))
            if logits is not None:
                int(logits.argmax())  # on a GPU this waits
            fastest[count] = min(fastest[count], time.perf_counter() - began)
    return max(0.0, fastest[many] - fastest[few]) / (many - few)


def _path(adapter: DecoderAdapter, identity: ModelIdentity) -> Path:
    device = torch.cuda.get_device_name(adapter.device) if adapter.device.type == "cuda" else adapter.device.type
    facts = [device, str(torch.get_num_threads()), str(os.cpu_count()), adapter.kernels, str(adapter.dtype)]
    versions = [str(PROFILE_VERSION), torch.__version__, transformers.__version__]
    return cache_directory() / "profile" / f"{digest_fields(identity.digest(), *facts, *versions)}.json"
