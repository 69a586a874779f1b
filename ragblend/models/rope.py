"""How each layer of a model rotates its keys, found by experiment.

A single token attends only to itself, so its hidden states do not depend on its position and its
keys at position p are R(p) times its keys at position 0. Comparing the two tells, for any model,
whether a layer rotates at all, which dimensions it pairs, and which of the model's own tables it
uses; a model whose keys follow none of the known forms is refused.

RoPE: Su et al., "RoFormer", arXiv 2104.09864. Tables are always the model's own (linear, llama3,
yarn, ...); yarn's attention scaling stays in the keys and is divided out of the tables.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ragblend.errors import UnsupportedModelError
from ragblend.kernels import ops
from ragblend.kernels.layout import Rotation

# Tables may hold each angle twice in a row of halves, twice side by side, or once.
_FORMS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "halves": lambda table: table[..., : table.shape[-1] // 2],
    "repeated": lambda table: table[..., 0::2],
    "single": lambda table: table,
}
# Relative error below which keys count as explained: far above bf16 rounding, far below a wrong form.
_EXPLAINED = 0.03
PROBE_POSITIONS = (1, 5, 23)


@dataclass(frozen=True, slots=True)
class LayerRotation:
    """rotation: the pairing. table: the rotary module's table name ("" if it has one). form: its layout."""

    rotation: Rotation
    table: str = ""
    form: str = "halves"


@dataclass(frozen=True, slots=True)
class Angles:
    """cos and sin of every position, [tokens, pairs] fp32, without attention scaling."""

    cos: Tensor
    sin: Tensor


class RotaryGeometry:
    """The rotation of each layer and the model's own tables of angles."""

    def __init__(self, rotary: nn.Module | None, layers: Sequence[LayerRotation]) -> None:
        self.rotary = rotary
        self.layers = tuple(layers)

    def angles(self, positions: Tensor) -> dict[LayerRotation, Angles]:
        """Angles at ``positions`` [tokens] int64, for each distinct rotation that turns keys."""
        found: dict[LayerRotation, Angles] = {}
        for layer in dict.fromkeys(self.layers):
            if layer.rotation != "none":
                found[layer] = table_angles(self.rotary, layer.table, layer.form, positions)
        return found

    def turning(self, layer: int, angles: Mapping[LayerRotation, Angles]) -> tuple[Tensor, Tensor, Rotation]:
        """cos, sin and pairing of ``layer``; the angles of a layer that does not rotate are empty."""
        rotation = self.layers[layer]
        if rotation.rotation == "none":
            return torch.empty(0, 0), torch.empty(0, 0), "none"
        table = angles[rotation]
        return table.cos, table.sin, rotation.rotation

    def rotate_(self, layer: int, keys: Tensor, angles: Mapping[LayerRotation, Angles], inverse: bool = False) -> None:
        """Turn keys [..., tokens, head_dim] of ``layer`` in place by ``angles``; back to position 0 if inverse."""
        cos, sin, rotation = self.turning(layer, angles)
        ops.rotate_(keys, cos, -sin if inverse else sin, rotation)


def table_names(rotary: nn.Module | None) -> tuple[str, ...]:
    """The rotary module's tables: one a layer type where its forward takes a layer type (gemma3), else ""."""
    if rotary is None:
        return ()
    if "layer_type" not in inspect.signature(rotary.forward).parameters:
        return ("",)
    layer_types = getattr(getattr(rotary, "config", None), "layer_types", None) or ()
    return tuple(dict.fromkeys(layer_types))


def table_angles(rotary: nn.Module | None, table: str, form: str, positions: Tensor) -> Angles:
    """The model's own angles, scaling divided out (cos at position 0 is the scaling)."""
    if rotary is None:
        raise UnsupportedModelError("the model rotates keys but has no rotary module")
    device = next((buffer.device for buffer in rotary.buffers()), positions.device)
    with_origin = torch.cat([positions.new_zeros(1), positions]).to(device)[None]
    arguments: dict[str, Any] = {"layer_type": table} if table else {}
    cos, sin = rotary(torch.zeros(1, 1, 1, device=device), with_origin, **arguments)
    cos, sin = _FORMS[form](cos[0].float()), _FORMS[form](sin[0].float())
    scaling = cos[0, 0]
    return Angles(cos[1:] / scaling, sin[1:] / scaling)


def explain_keys(rotary: nn.Module | None, where: str, origin: Tensor, probes: Mapping[int, Tensor]) -> LayerRotation:
    """The rotation that turns ``origin`` (keys at position 0) into each of ``probes`` (by position).

    Keys are [kv_heads, 1, head_dim] fp32. Raises UnsupportedModelError, naming ``where``, when none does.
    """
    positions = list(probes)
    best, smallest = LayerRotation("none"), _mismatch([origin] * len(probes), probes)
    for table in table_names(rotary):
        for form in _FORMS:
            angles = table_angles(rotary, table, form, torch.tensor(positions))
            if 2 * angles.cos.shape[-1] > origin.shape[-1]:
                continue
            pairings: tuple[Rotation, Rotation] = ("half", "interleaved")
            for rotation in pairings:
                turned = []
                for index in range(len(positions)):
                    keys = origin.clone()
                    cos, sin = angles.cos[index].to(keys.device), angles.sin[index].to(keys.device)
                    ops.rotate_(keys, cos[None], sin[None], rotation)
                    turned.append(keys)
                error = _mismatch(turned, probes)
                if error < smallest:
                    best, smallest = LayerRotation(rotation, table, form), error
    if smallest > _EXPLAINED:
        raise UnsupportedModelError(
            f"{where} places positions in its keys in a way that is no known rotation "
            f"(best match is off by {smallest:.0%}), so its chunks could not be moved"
        )
    return best


def _mismatch(turned: Sequence[Tensor], probes: Mapping[int, Tensor]) -> float:
    errors = [
        float((ours - keys).norm() / keys.norm().clamp_min(1e-20))
        for ours, keys in zip(turned, probes.values(), strict=True)
    ]
    return max(errors)
