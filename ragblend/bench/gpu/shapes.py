"""Shapes of known models: what a kernel's or a request's time depends on, without their weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ragblend.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder's sizes, as its published configuration has them. eight_bit: its linear layers are kept in fp8."""

    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    rope_theta: float
    family: str = "llama"
    eight_bit: bool = False

    @property
    def linear_parameters(self) -> int:
        """Parameters of all decoder layers' linear maps."""
        attention = self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights: 2 a parameter, 1 in the linear layers of an eight-bit model."""
        return self.linear_parameters * (1 if self.eight_bit else 2) + 4 * self.vocabulary * self.hidden

    def kv_bytes(self, tokens: int, element_bytes: int = 2) -> int:
        """Bytes of the keys and values of ``tokens``, in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * tokens * element_bytes


SHAPES = {
    shape.name: shape
    for shape in (
        ModelShape("llama-3-8b", 32, 4096, 14336, 32, 8, 128, 128_256, 500_000.0),
        ModelShape("mistral-7b", 32, 4096, 14336, 32, 8, 128, 32_768, 1_000_000.0, family="mistral"),
        ModelShape("qwen2.5-14b", 48, 5120, 13824, 40, 8, 128, 152_064, 1_000_000.0, family="qwen2"),
        ModelShape("yi-34b", 60, 7168, 20480, 56, 8, 128, 64_000, 5_000_000.0),
        ModelShape("llama-70b", 80, 8192, 28672, 64, 8, 128, 128_256, 500_000.0, eight_bit=True),
        # Not a known model: small enough to try the benchmark itself anywhere.
        ModelShape("tiny", 2, 64, 96, 4, 2, 16, 320, 10_000.0),
    )
}
KNOWN_MODELS = tuple(name for name in SHAPES if name != "tiny")


def shapes_named(names: Sequence[str]) -> list[ModelShape]:
    """The shapes with these names. Raises ConfigError, listing the known ones."""
    unknown = [name for name in names if name not in SHAPES]
    if unknown or not names:
        raise ConfigError(f"unknown model shapes {', '.join(unknown) or '(none)'}: choose from {', '.join(SHAPES)}")
    return [SHAPES[name] for name in names]
