"""Frozen settings. A bad value raises ConfigError at construction, with the range."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, Literal, cast, get_args

from platformdirs import user_cache_path

from ragblend.errors import ConfigError
from ragblend.field_types import is_number, require_types

DEFAULT_NAMESPACE = "default"

# How chunk KV may be kept: numbers as computed or in fewer bits, each with or without compression.
CODECS = tuple(f"{numbers}{packing}" for numbers in ("raw", "int8", "fp8", "int4") for packing in ("", "+zstd"))


def cache_directory() -> Path:
    """Where converted models and measured facts are kept: ``$RAGBLEND_CACHE_DIR`` or the user cache."""
    override = os.environ.get("RAGBLEND_CACHE_DIR")
    return Path(override) if override else user_cache_path("ragblend")


def require(condition: bool, message: str) -> None:
    """Raise ConfigError with ``message`` unless ``condition`` holds."""
    if not condition:
        raise ConfigError(message)


def require_count(name: str, value: object, least: int = 1) -> None:
    """Raise ConfigError unless ``value`` is a whole number of at least ``least``."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    require(whole, f"{name} must be a whole number, got {value!r}")
    require(cast("int", value) >= least, f"{name} must be at least {least}, got {value}")


def require_text(name: str, value: object) -> None:
    """Raise ConfigError unless ``value`` is text, and of whole characters (no lone surrogates)."""
    require(isinstance(value, str), f"{name} must be text, got {type(value).__name__}")
    try:
        cast("str", value).encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{name} must be valid Unicode, and this is not: {value!r}") from error


def require_question(question: object) -> None:
    """Raise ConfigError unless it is text with something in it."""
    require_text("the question", question)
    require(bool(cast("str", question).strip()), "the question is empty: ask something")


def require_namespace(namespace: object) -> None:
    """Raise ConfigError unless it can be a namespace's name."""
    require_text("the namespace", namespace)
    require(bool(namespace), "the namespace is empty: give it a name")


Ratio = float | Literal["auto"]
ChunkOrder = Literal["best-last", "best-first", "document"]


def require_order(order: object) -> None:
    """Raise ConfigError unless it is an order of chunks."""
    orders = get_args(ChunkOrder)
    require(isinstance(order, str) and order in orders, f"order must be one of {', '.join(orders)}, got {order!r}")


def require_ratio(ratio: Ratio, whose: str = "") -> None:
    """Raise ConfigError unless it is ``auto`` or between 0 and 1."""
    known = ratio == "auto" or (is_number(ratio) and 0.0 <= ratio <= 1.0)
    require(known, f"ratio must be auto or between 0 and 1, got {ratio!r}{f' for {whose}' if whose else ''}")


def fixed_ratio(ratio: Ratio) -> float:
    """The ratio, which is the same for every request. Raises ConfigError for ``auto``."""
    if ratio == "auto":
        raise ConfigError("with auto every request has another ratio, so they could not be compared: give a number")
    return ratio


def as_ratio(text: str) -> Ratio:
    """``0.15`` or ``auto``. Raises ConfigError."""
    if text == "auto":
        return "auto"
    try:
        ratio = float(text)
    except ValueError as error:
        raise ConfigError(f"ratio must be auto or between 0 and 1, got {text!r}") from error
    require_ratio(ratio)
    return ratio


@dataclass(frozen=True, slots=True)
class BlendSettings:
    """How a request reuses chunk KV.

    policy: name of a registered selection policy.
    ratio: share of the reused, inexact chunk tokens that the policy recomputes, 0 to 1; or ``auto``: for each request
        as much as the time allows that loading its chunks takes anyway, and at least ``ratio_floor``.
    overflow: what happens when the prompt is longer than the context: ``refuse`` raises
        ContextOverflowError, ``drop`` leaves out the lowest-scored chunks and reports them.
    order: how ``Library.ask`` places what it found: the best chunk next to the question (``best-last``) or
        furthest from it (``best-first``), or chunks of one file together and as they stand in it, that of the best
        chunk next to the question (``document``; a text that a program gave is a document of its own).
    """

    policy: str = "query"
    ratio: Ratio = 0.15
    overflow: Literal["refuse", "drop"] = "refuse"
    ratio_floor: float = 0.15
    order: ChunkOrder = "best-last"

    def __post_init__(self) -> None:
        require_types(self)
        require_ratio(self.ratio)
        require(0.0 <= self.ratio_floor <= 1.0, f"ratio_floor must be between 0 and 1, got {self.ratio_floor}")
        require(self.overflow in ("refuse", "drop"), f"overflow must be 'refuse' or 'drop', got {self.overflow!r}")
        require_order(self.order)


@dataclass(frozen=True, slots=True)
class ReuseSettings:
    """How a library reuses chunk KV in prompts that are not built from its own search.

    find: search the prompt's text for known texts.
    learn: what is precomputed in the background, after an answer, for the next time: nothing; passages and
        known texts whose KV was not in the store; or paragraphs too, the rest of the text cut at blank lines.
    learn_tokens: most tokens that wait to be precomputed; what does not fit is not learned.
    """

    find: bool = True
    learn: Literal["off", "passages", "paragraphs"] = "passages"
    learn_tokens: int = 65_536

    def __post_init__(self) -> None:
        require_types(self)
        modes = ("off", "passages", "paragraphs")
        require(self.learn in modes, f"learn must be one of {', '.join(modes)}, got {self.learn!r}")
        require(self.learn_tokens >= 0, f"learn_tokens must not be negative, got {self.learn_tokens}")


@dataclass(frozen=True, slots=True)
class PrefixSettings:
    """How KV of prompts' beginnings is kept for later prompts that begin alike.

    automatic: keep what every request computes; else only what stands before cache points and in named caches.
    block_tokens: tokens are reused in blocks of so many.
    memory_bytes, disk_bytes: most bytes of one namespace, in memory and in a library's folder. Where StoreSettings and
        DiskLimits have budgets, these are shares of them: chunks and prefixes make room for each other.
    minimum_tokens: a cache point behind fewer tokens is not honoured, and the answer says so.
    approximate: what the next turn of a conversation does with KV that blending left approximate: reuse
        it as it is; refine it, so that the policy recomputes a share of it for the new question; or forbid,
        to blend every turn anew.
    max_turns: approximate KV is blended anew after so many turns.
    """

    automatic: bool = True
    block_tokens: int = 16
    memory_bytes: int = 1 << 30
    disk_bytes: int = 4 << 30
    minimum_tokens: int = 128
    approximate: Literal["reuse", "refine", "forbid"] = "reuse"
    max_turns: int = 8

    def __post_init__(self) -> None:
        require_types(self)
        modes = ("reuse", "refine", "forbid")
        require(self.approximate in modes, f"approximate must be one of {', '.join(modes)}, got {self.approximate!r}")
        require(1 <= self.block_tokens <= 1024, f"block_tokens must be between 1 and 1024, got {self.block_tokens}")
        for name in ("memory_bytes", "disk_bytes", "minimum_tokens"):
            require(getattr(self, name) >= 0, f"{name} must not be negative, got {getattr(self, name)}")
        require(self.max_turns >= 1, f"max_turns must be at least 1, got {self.max_turns}")


@dataclass(frozen=True, slots=True)
class GenerationSettings:
    """How the answer is decoded; the names are those of transformers' generation.

    temperature 0 is greedy. top_k 0 and top_p 1 switch those filters off. grammar: in llguidance's form of
    Lark, JSON schemas included (``start: %json {...}``); the answer follows it, unless max_tokens cuts it.
    cuda_graph: on a GPU with Triton, launch each token's kernels together; elsewhere nothing changes.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = field(default=())
    grammar: str | None = None
    cuda_graph: bool = False

    def __post_init__(self) -> None:
        require_types(self)
        require(self.max_tokens >= 1, f"max_tokens must be at least 1, got {self.max_tokens}")
        require(0 <= self.temperature < inf, f"temperature must be finite and not negative, got {self.temperature}")
        require(0.0 < self.top_p <= 1.0, f"top_p must be above 0 and at most 1, got {self.top_p}")
        require(self.top_k >= 0, f"top_k must not be negative, got {self.top_k}")
        require(self.repetition_penalty > 0, f"repetition_penalty must be above 0, got {self.repetition_penalty}")
        known = self.seed is None or -(1 << 63) <= self.seed < 1 << 64
        require(known, f"seed must fit into 64 bits, got {self.seed}")
        require(all(self.stop), "a stop string must not be empty")


@dataclass(frozen=True, slots=True)
class ChunkSettings:
    """How documents are cut. ``tokens`` counts the generating model's tokens, title line included."""

    tokens: int = 256

    def __post_init__(self) -> None:
        require_types(self)
        require(16 <= self.tokens <= 8192, f"chunk tokens must be between 16 and 8192, got {self.tokens}")


@dataclass(frozen=True, slots=True)
class DiskLimits:
    """What a namespace may take of the disk. Recorded in the library, so that every process keeps to it.

    budget: bytes of the namespace's KV files, chunks and prefixes, None for no limit. What is over it is evicted: the
        documents stay, and evicted chunks are computed in place when a question needs them.
    total_budget: bytes of the KV files of all namespaces. A namespace makes room among its own entries only.
    high_watermark, low_watermark: shares of a budget. Eviction begins above the one and ends below the other.
    free_space_floor: bytes that have to stay free on the filesystem.
    ttl_s: seconds after its last use at which an entry expires, None for never.
    """

    budget: int | None = None
    total_budget: int | None = None
    low_watermark: float = 0.9
    high_watermark: float = 1.0
    free_space_floor: int = 0
    ttl_s: float | None = None

    def __post_init__(self) -> None:
        require_types(self)
        for name, budget in (("disk budget", self.budget), ("total disk budget", self.total_budget)):
            require(budget is None or budget > 0, f"the {name} must be positive, got {budget} bytes")
        require(
            0.0 < self.low_watermark <= self.high_watermark <= 1.0,
            f"watermarks must be above 0 and at most 1, the low one not above the high one, "
            f"got {self.low_watermark} and {self.high_watermark}",
        )
        require(self.free_space_floor >= 0, f"the free space floor must not be negative, got {self.free_space_floor}")
        require(self.ttl_s is None or self.ttl_s > 0, f"the time to live must be positive, got {self.ttl_s} seconds")

    @property
    def any(self) -> bool:
        """Whether there is any limit, so that it matters when an entry was last used."""
        return bool(self.budget or self.total_budget or self.free_space_floor or self.ttl_s)


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Where a library keeps chunk KV, and how much of it.

    codec: how chunk KV is kept: ``raw``, or in fewer bits as ``int8``, ``fp8`` or ``int4``, each also compressed
        (``int8+zstd``). A library has one; None leaves it as it was, at first ``raw``.
    memory_budget: bytes of a tier in this process's memory, per namespace, for chunks and prefixes; 0 for none, and
        prefixes have ``PrefixSettings.memory_bytes`` of their own. With an engine on a GPU it is page-locked, so that
        the GPU copies from it by itself. device_budget: the same for chunks in the memory of the engine's GPU, in front
        of it; an engine on a CPU has none.
    disk: what the namespace may take of the disk; recorded in the library. None leaves it as it was.
    remote: URL of a tier behind the disk (``s3://bucket/folder``, ``file:///mnt/shared``); recorded in the library, so
        it holds no secrets. None leaves it as it was, and an empty one ends it. remote_options: what fsspec's
        filesystem takes, not recorded. remote_timeout_s bounds each operation, all its tries included.
    encryption_key_file: a file with the namespace's key, outside the library (``openssl rand -hex 32``).
    shared_namespace: a namespace of the same library that is searched and served as well, and never written.
    """

    codec: str | None = None
    memory_budget: int = 0
    device_budget: int = 0
    disk: DiskLimits | None = None
    remote: str | None = None
    remote_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    remote_timeout_s: float = 5.0
    remote_tries: int = 3
    encryption_key_file: str | Path | None = None
    shared_namespace: str = ""

    def __post_init__(self) -> None:
        require_types(self)
        known = self.codec is None or self.codec in CODECS
        require(known, f"the codec must be one of {', '.join(CODECS)}, got {self.codec!r}")
        for name, budget in (("memory", self.memory_budget), ("device", self.device_budget)):
            require(budget >= 0, f"the {name} budget must not be negative, got {budget} bytes")
        require(self.remote_timeout_s > 0, f"the remote timeout must be positive, got {self.remote_timeout_s} seconds")
        require(self.remote_tries >= 1, f"a remote operation is tried at least once, got {self.remote_tries}")


_UNITS = {"": 1, "b": 1, **{f"{p}b": 1000**i for i, p in enumerate("kmgt", 1)}}
_UNITS |= {f"{p}ib": 1024**i for i, p in enumerate("kmgt", 1)}


def byte_count(text: str) -> int:
    """``20GB``, ``1.5 TiB`` or ``1000000`` in bytes. Raises ConfigError."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower())
    if found is None or found[2] not in _UNITS:
        raise ConfigError(f"{text!r} is no number of bytes: write it as 500MB or 20GiB")
    return int(float(found[1]) * _UNITS[found[2]])
