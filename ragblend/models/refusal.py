"""What a configuration already tells about a model that cannot serve. The gate finds the rest."""

from __future__ import annotations

from typing import Any

from ragblend.errors import UnsupportedModelError

_LENGTH_DEPENDENT = ("dynamic", "longrope")
_STATEFUL = ("mamba", "linear_attention", "recurrent", "conv")


def check_config(config: Any) -> None:
    """Raise UnsupportedModelError, naming the family and the reason, for what is known not to work."""
    family = config.model_type
    text = config.get_text_config()
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModelError(f"{family}: encoder-decoder models have no decoder-only prompt to reuse KV in")
    if getattr(config, "auto_map", None):
        raise UnsupportedModelError(f"{family}: the model brings its own code, which ragblend never runs")
    if getattr(text, "kv_lora_rank", None):
        raise UnsupportedModelError(
            f"{family}: multi-head latent attention (MLA) caches a latent, not keys and values, "
            "so its chunks could not be moved"
        )
    kinds = [str(kind) for kind in getattr(text, "layer_types", None) or ()]
    stateful = sorted({kind for kind in kinds if any(word in kind for word in _STATEFUL)})
    if stateful or getattr(text, "state_size", None) or getattr(text, "mamba_d_state", None):
        kind = ", ".join(stateful) or "state-space"
        raise UnsupportedModelError(
            f"{family}: {kind} layers carry a running state instead of keys and values (SSM or hybrid model), "
            "so a chunk's part of it could not be reused"
        )


def context_length(config: Any) -> int:
    """Tokens that the model takes. Where the rotation depends on the length (``dynamic``, ``longrope``),
    only the stretch in which it does not: keys rotated with other frequencies could not be moved."""
    text = config.get_text_config()
    limit = int(getattr(text, "max_position_embeddings", 0) or 0) or 2048
    parameters = getattr(text, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)] or [parameters]
    for rope in nested:
        if rope.get("rope_type") in _LENGTH_DEPENDENT:
            limit = min(limit, int(rope.get("original_max_position_embeddings") or limit))
    return limit
