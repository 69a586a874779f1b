"""A model is trusted once it has passed the gate with these versions; the verdict is remembered."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import torch
import transformers

from ragblend.blend.gate import run_gate
from ragblend.blend.remembered import remember
from ragblend.config import cache_directory
from ragblend.errors import UnsupportedModelError
from ragblend.models.adapter import DecoderAdapter
from ragblend.store.key import KEY_VERSION, ModelIdentity, digest_fields

# Raise it when a change to the blend must be proved anew on every model.
GATE_VERSION = 1


def require_trust(adapter: DecoderAdapter, name: str, identity: ModelIdentity) -> None:
    """Run the gate on a model that has not passed it yet. Raises UnsupportedModelError with what failed."""
    verdict = _verdict_path(adapter, identity)
    if verdict.exists():
        return
    report = run_gate(adapter, name)
    if not report.passed:
        raise UnsupportedModelError(
            f"{name} ({adapter.family}) does not compute the same through blending: {report.reason()}. "
            "Run `ragblend doctor` on it for every check; use another model"
        )
    remember(verdict, {"model": name, "checks": [check.name for check in report.checks]})


def _verdict_path(adapter: DecoderAdapter, identity: ModelIdentity) -> Path:
    versions = [str(GATE_VERSION), str(KEY_VERSION), torch.__version__, transformers.__version__, adapter.kernels]
    if adapter.kernels == "triton":
        versions.append(version("triton"))
    return cache_directory() / "gate" / f"{digest_fields(identity.digest(), adapter.device.type, *versions)}.json"
