"""Who a model is, by content: what must be equal for its KV to be reused."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from transformers import PreTrainedModel

from ragblend.models.rope import RotaryGeometry
from ragblend.store.key import ModelIdentity, digest_fields

# Configuration entries that say how a model was written or is run, not what it computes.
_INCIDENTAL = ("_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype", "use_cache")
_INCIDENTAL_TO_ADAPTERS = ("base_model_name_or_path", "revision", "auto_mapping", "inference_mode", "peft_version")
_PROBED_POSITIONS = (0, 1, 2, 1000)


def model_identity(model: PreTrainedModel, tokenizer: Any, rotary: RotaryGeometry) -> ModelIdentity:
    """Digest the weights (adapters merged or not are weights too), tokenizer, configuration and rotation."""
    config = model.config.to_dict()
    quantisation = config.pop("quantization_config", None)
    return ModelIdentity(
        weights=_weights_digest(model),
        tokenizer=_tokenizer_digest(tokenizer),
        config=digest_fields(_json({name: value for name, value in config.items() if name not in _INCIDENTAL})),
        dtype=str(model.dtype).removeprefix("torch."),
        adapter=adapter_digest(model),
        quantisation=digest_fields(_json(quantisation)) if quantisation else "",
        rope=_rope_digest(rotary),
    )


def _weights_digest(model: PreTrainedModel) -> str:
    hasher = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        hasher.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        hasher.update(data.numpy())
    return hasher.hexdigest()


def _tokenizer_digest(tokenizer: Any) -> str:
    if tokenizer is None:
        return ""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    words = backend.to_str() if backend is not None else _json(tokenizer.get_vocab())
    return digest_fields(words, _json(getattr(tokenizer, "chat_template", None)))


def adapter_digest(model: PreTrainedModel) -> str:
    """How low-rank adapters are configured, and how each layer applies them now; their numbers are weights."""
    configs = getattr(model, "peft_config", None) or {}
    settings = {
        name: {field: value for field, value in config.to_dict().items() if field not in _INCIDENTAL_TO_ADAPTERS}
        for name, config in configs.items()
    }
    applied = {
        name: [getattr(module, field, None) for field in ("scaling", "active_adapters", "disable_adapters")]
        for name, module in model.named_modules()
        if isinstance(getattr(module, "scaling", None), dict)
    }
    return digest_fields(_json([settings, applied])) if settings or applied else ""


def _rope_digest(rotary: RotaryGeometry) -> str:
    """Each layer's rotation and some of its angles: a changed base or scaling changes them."""
    angles = rotary.angles(torch.tensor(_PROBED_POSITIONS))
    fields = [f"{layer.rotation} {layer.form} {layer.table}" for layer in rotary.layers]
    fields += [f"{layer.table} {table.cos.tolist()} {table.sin.tolist()}" for layer, table in angles.items()]
    return digest_fields(*fields)


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=_plain)


def _plain(value: Any) -> Any:
    """What JSON lacks. A set has its elements in another order in every process."""
    return sorted(value, key=str) if isinstance(value, set | frozenset) else str(value)
