"""Weights in the order in which oneDNN multiplies them: for models on x86 CPUs.

torch multiplies by a weight as it lies in memory. oneDNN then reorders it in every call, or takes a slower way, and
MKL, which torch uses for fp32, keeps AMD's CPUs below half of what they can do. Reordered once, a weight is multiplied
by one row twice as fast, and by hundreds 1.1 times as fast in bfloat16 and 2.3 times in fp32, to the same numbers but
for rounding (torch's own compiler does the same to the models that it compiles).
"""

from __future__ import annotations

import platform
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

# How many rows a weight is reordered for; it serves any number. One for many rows serves single ones as well.
_ROWS = 512
_X86 = ("x86_64", "amd64")


class PackedLinear(nn.Module):
    """``linear`` with its weight reordered; the plain one is let go. Without gradients.

    In a state dict it looks like what it replaces. packed: the weight as oneDNN holds it.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        self.packed = _pack(linear.weight.detach())

    @property
    def weight(self) -> Tensor:
        """A plain copy of the weight [out_features, in_features]."""
        return self.packed.to_dense()

    def convert(self, dtype: torch.dtype) -> None:
        """Hold the weight in another dtype. The bias is a parameter like any other."""
        self.packed = _pack(self.weight.to(dtype))

    def forward(self, inputs: Tensor) -> Tensor:
        return _multiply(inputs, self.packed, self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}weight"] = self.weight


def pack_linears(model: nn.Module) -> int:
    """Replace the linear layers of ``model`` by packed ones where that is known to be faster; returns how many.

    Layers stay as they are on GPUs and other CPUs than x86's, in dtypes that this CPU does not multiply packed, and
    where they are more than plain linear layers (quantised, hooked). So does a model with adapters, which can be
    merged into its weights. A weight that is also the embedding stays there as it is, and is packed in a copy.
    """
    replaced = 0
    if getattr(model, "peft_config", None):
        return replaced
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and _is_plain(child) and can_pack(child.weight.device, child.weight.dtype):
                setattr(parent, name, PackedLinear(child))
                replaced += 1
    return replaced


@cache
def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether packed weights of ``dtype`` can be multiplied here, and come to the same; tried on a small one."""
    if device.type != "cpu" or platform.machine().lower() not in _X86:
        return False
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(96, 80, generator=generator).to(dtype)
    inputs = torch.randn(3, 80, generator=generator).to(dtype)
    try:
        packed = _pack(weight)
        same_weight = torch.equal(packed.to_dense(), weight)
        product = _multiply(inputs, packed, None)
    except (AttributeError, RuntimeError):  # this torch or this CPU does not have it
        return False
    tolerance = 8 * torch.finfo(dtype).eps * 80**0.5
    return same_weight and torch.allclose(product, nn.functional.linear(inputs, weight), rtol=0.02, atol=tolerance)


def _is_plain(linear: nn.Linear) -> bool:
    hooks = (linear._forward_hooks, linear._forward_pre_hooks, linear._backward_hooks)
    return "weight" in linear._parameters and not any(hooks)


def _pack(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
    return packed


def _multiply(inputs: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, packed, bias, "none", [], "")
    return product
