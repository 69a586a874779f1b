"""Models with random weights in the shapes of known ones: their time is that of the real ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ragblend.bench.gpu.shapes import ModelShape

CONTEXT_LENGTH = 40_960
_LARGEST = 448.0  # of float8_e4m3fn


@torch.inference_mode()
def random_model(shape: ModelShape, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """A model of the shape on ``device``. Weights are normal with a deviation of 0.02."""
    settings: dict[str, Any] = {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": CONTEXT_LENGTH,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta},
        "sliding_window": None,
        "tie_word_embeddings": False,
    }
    config = CONFIG_MAPPING[shape.family](**settings)
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)  # type: ignore[no-untyped-call]
        if shape.eight_bit:
            _use_eight_bits(model.base_model)
    for module in model.modules():
        _materialise(module, config, device)
    return model.eval()  # type: ignore[no-any-return, no-untyped-call]


class EightBitLinear(nn.Module):
    """A linear map without bias whose weights are float8_e4m3fn; activations are scaled by their largest number.

    Needs a device whose matrix cores multiply float8 (compute capability 8.9, or a CPU).
    """

    weight: Tensor
    scale: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.out_type = linear.weight.dtype
        self.register_buffer("weight", torch.empty(linear.weight.shape, dtype=torch.float8_e4m3fn))
        self.register_buffer("scale", torch.empty((), dtype=torch.float32))

    def forward(self, inputs: Tensor) -> Tensor:
        flat = inputs.reshape(-1, inputs.shape[-1])
        scale = (flat.abs().amax().float() / _LARGEST).clamp_min(1e-12)
        small = (flat.float() / scale).to(torch.float8_e4m3fn)
        product: Tensor = torch._scaled_mm(
            small, self.weight.t(), scale_a=scale, scale_b=self.scale, out_dtype=self.out_type
        )
        return product.reshape(*inputs.shape[:-1], -1)


def _use_eight_bits(module: nn.Module) -> None:
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            setattr(module, name, EightBitLinear(child))
        else:
            _use_eight_bits(child)


def _materialise(module: nn.Module, config: Any, device: torch.device) -> None:
    """Give a module's own parameters and buffers memory and numbers."""
    if isinstance(module, EightBitLinear):
        module.weight = (torch.randn(module.weight.shape, device=device, dtype=torch.bfloat16) * 0.02 * 1024).to(
            torch.float8_e4m3fn
        )
        module.scale = torch.tensor(1 / 1024, device=device)
    elif "inv_freq" in module._buffers:  # the rotary module computes its tables from the configuration
        with device:
            module.__init__(config)  # type: ignore[misc]
    else:
        for name, parameter in module.named_parameters(recurse=False):
            numbers = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
            filled = numbers.fill_(1.0) if "norm" in type(module).__name__.lower() else numbers.normal_(0.0, 0.02)
            setattr(module, name, nn.Parameter(filled, requires_grad=False))
