"""A model for a while in fp32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import torch
from torch import Tensor, nn

from ragblend.models.packed import PackedLinear

# What the fp32 weights may take of the free memory: the rest is for computing.
_SHARE_OF_FREE_MEMORY = 0.7


@contextmanager
def in_float32(model: nn.Module) -> Iterator[None]:
    """Turn 16-bit weights into fp32 for the block, and back without loss.

    A model that does not fit into memory in fp32, or whose weights are quantised, stays as it is.
    """
    halves = [tensor for tensor in (*model.parameters(), *model.buffers()) if _is_half(tensor)]
    packed = [module for module in model.modules() if isinstance(module, PackedLinear) and _is_half(module.packed)]
    if getattr(model, "is_quantized", False) or not _fits([*halves, *(module.packed for module in packed)]):
        yield
        return
    before = [tensor.dtype for tensor in halves]
    packed_before = [module.packed.dtype for module in packed]
    for tensor in halves:
        tensor.data = tensor.data.float()
    for module in packed:
        module.convert(torch.float32)
    try:
        yield
    finally:
        for tensor, dtype in zip(halves, before, strict=True):
            tensor.data = tensor.data.to(dtype)
        for module, dtype in zip(packed, packed_before, strict=True):
            module.convert(dtype)


def _is_half(tensor: Tensor) -> bool:
    return tensor.dtype in (torch.float16, torch.bfloat16)


def _fits(halves: list[Tensor]) -> bool:
    if not halves:
        return False
    device = halves[0].device
    needed = sum(tensor.numel() * tensor.element_size() for tensor in halves)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
    else:
        free = psutil.virtual_memory().available
    return needed <= _SHARE_OF_FREE_MEMORY * free
