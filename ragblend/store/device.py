"""Chunk KV in the memory of the device that computes, such as a GPU, within a byte budget."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from ragblend.store.memory import MemoryStore


class DeviceStore(MemoryStore):
    """A memory store on ``device``: what is found there needs no way over the bus. Options are the memory store's."""

    tier: ClassVar[str] = "device"

    def __init__(self, budget_bytes: int, device: torch.device | str, **options: Any) -> None:
        super().__init__(budget_bytes, **options)
        self.device = torch.device(device)

    def _hold(self, tensor: Tensor, copy: bool) -> Tensor:
        return tensor.detach().to(self.device, copy=copy).contiguous()
