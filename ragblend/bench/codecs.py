"""``ragblend bench store``: what each codec takes on the disk and in time, and what it costs in fidelity."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from ragblend.bench.chunks import cut
from ragblend.bench.codec_fidelity import CodecFidelity, measure_fidelity
from ragblend.bench.gpu.clock import seconds_of
from ragblend.bench.machine import Machine, describe_machine
from ragblend.bench.stores import temporary_store
from ragblend.bench.variants import ratio_shown
from ragblend.config import DEFAULT_NAMESPACE, require
from ragblend.engine import Engine
from ragblend.errors import StoreError
from ragblend.kernels import ops
from ragblend.kernels.layout import LayerKV
from ragblend.store.base import ChunkKV, read_whole
from ragblend.store.codecs import StoreCodec
from ragblend.store.disk import DiskStore

_BF16_BYTES = 2


@dataclass(frozen=True, slots=True)
class CodecRow:
    """One codec. bytes_per_token: of the files. share_of_bf16: of what the numbers take in bfloat16.

    write_mb_s, read_mb_s: megabytes of KV as the model computed it for each second of writing it durably, and of
    reading and checking it through the page cache. place_s: dequantising all layers, turning their keys and writing
    them to the canvas. Seconds are medians over the rounds.
    """

    codec: str
    bytes_per_token: float
    share_of_bf16: float
    write_mb_s: float
    read_mb_s: float
    place_s: float


@dataclass(frozen=True, slots=True)
class CodecReport:
    """tokens: of the chunks in ``rows``. fidelity: on the questions of ``data``; empty without any."""

    rows: tuple[CodecRow, ...]
    tokens: int
    fidelity: tuple[CodecFidelity, ...]
    data: str
    machine: Machine


def run(
    engine: Engine,
    *,
    codecs: Sequence[str],
    tokens: int = 4096,
    chunk_tokens: int = 256,
    repeats: int = 3,
    data: Path | None = None,
    policies: Sequence[str] = ("none", "query"),
    ratio: float = 0.15,
    limit: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> CodecReport:
    """Write, read and place ``tokens`` tokens of the example handbook in each codec, and ask the questions of ``data``.

    Each round goes through all codecs, so that what disturbs the machine meets all alike; one to warm up is not
    counted. progress: called with the steps done and their total.

    Raises ConfigError (settings, an unknown codec, a missing package, too little text), PathNotFoundError (data).
    """
    require(repeats >= 1, f"repeats must be at least 1, got {repeats}")
    require(tokens >= 1, f"tokens must be at least 1, got {tokens}")
    require(chunk_tokens >= 1, f"chunk tokens must be at least 1, got {chunk_tokens}")
    chosen = as_codecs(codecs)
    chunks = cut(engine.template, None, tokens, chunk_tokens)
    kvs = list(engine.prefill(chunks))
    rounds: list[list[_Timed]] = [[] for _ in chosen]
    total = (repeats + 1) * len(chosen)
    for done in range(total):
        number, index = divmod(done, len(chosen))
        timed = _measure(engine, kvs, chosen[index])
        if number > 0:
            rounds[index].append(timed)
        if progress is not None:
            progress(done + 1, total)
    fidelity: tuple[CodecFidelity, ...] = ()
    if data is not None:
        fidelity = measure_fidelity(
            engine, data=data, codecs=chosen, policies=policies, ratio=ratio, limit=limit, progress=progress
        )
    return CodecReport(
        rows=tuple(_row(codec, timed, kvs) for codec, timed in zip(chosen, rounds, strict=True)),
        tokens=tokens,
        fidelity=fidelity,
        data=data.name if data else "",
        machine=describe_machine(engine),
    )


def as_codecs(names: Sequence[str]) -> list[StoreCodec]:
    """Raises ConfigError for an unknown codec, one that is named twice, and one whose package is missing."""
    require(bool(names), "name at least one codec to measure")
    require(len(set(names)) == len(names), "a codec is named twice")
    codecs = [StoreCodec.named(name) for name in names]
    for codec in codecs:
        codec.require_package()
    return codecs


@dataclass(frozen=True, slots=True)
class _Timed:
    file_bytes: int
    write_s: float
    read_s: float
    place_s: float


def _measure(engine: Engine, kvs: Sequence[ChunkKV], codec: StoreCodec) -> _Timed:
    keys = [engine.chunk_key(DEFAULT_NAMESPACE, kv.token_ids, codec.name) for kv in kvs]
    with temporary_store(partial(DiskStore, codec=codec.name)) as store:
        began = time.perf_counter()
        file_bytes = sum(store.put(key, kv) for key, kv in zip(keys, kvs, strict=True))
        written = time.perf_counter()
        read = [_read(store, key, kv.token_ids) for key, kv in zip(keys, kvs, strict=True)]
        ended = time.perf_counter()
    return _Timed(file_bytes, written - began, ended - written, _place(engine, read))


def _read(store: DiskStore, key: str, token_ids: tuple[int, ...]) -> ChunkKV:
    reader = store.open(key, token_ids)
    if reader is None:
        raise StoreError(f"{store.root}: what was just written cannot be read")
    with closing(reader):
        return read_whole(reader, token_ids)


def _place(engine: Engine, kvs: Sequence[ChunkKV]) -> float:
    """Seconds of placing all layers of all chunks, one behind the other."""
    adapter = engine.adapter
    starts = [0]
    for kv in kvs:
        starts.append(starts[-1] + len(kv.token_ids))
    total = starts.pop()
    canvas = adapter.canvas(total)
    angles = adapter.rotary.angles(torch.arange(total, device=adapter.device))
    seconds = 0.0
    with torch.inference_mode():
        for layer in range(len(kvs[0].layers)):
            chunks = [_on(adapter.device, kv.layers[layer]) for kv in kvs]
            keys, values = canvas.keys(layer)[0], canvas.values(layer)[0]
            cos, sin, rotation = adapter.rotary.turning(layer, angles)
            place = partial(ops.place_chunks, chunks, starts, keys, values, cos, sin, 0, rotation, impl=adapter.kernels)
            seconds += seconds_of(adapter.device, place)
    return seconds


def _on(device: torch.device, layer: LayerKV) -> LayerKV:
    return layer.map(lambda tensor: tensor.to(device).contiguous())


def _row(codec: StoreCodec, timed: Sequence[_Timed], kvs: Sequence[ChunkKV]) -> CodecRow:
    tokens = sum(len(kv.token_ids) for kv in kvs)
    numbers = sum(tensor.numel() for kv in kvs for layer in kv.layers for tensor in layer.tensors)
    megabytes = sum(kv.nbytes for kv in kvs) / 1e6
    file_bytes = timed[0].file_bytes
    return CodecRow(
        codec=codec.name,
        bytes_per_token=file_bytes / tokens,
        share_of_bf16=file_bytes / (numbers * _BF16_BYTES),
        write_mb_s=megabytes / statistics.median(each.write_s for each in timed),
        read_mb_s=megabytes / statistics.median(each.read_s for each in timed),
        place_s=statistics.median(each.place_s for each in timed),
    )


Table = tuple[list[str], list[tuple[str, ...]]]


def store_table(rows: Sequence[CodecRow]) -> Table:
    """Columns and rows for people."""
    return ["codec", "bytes a token", "of bf16", "write", "read", "place"], [
        (
            row.codec,
            f"{row.bytes_per_token:,.0f}",
            f"{row.share_of_bf16:.3f}",
            f"{row.write_mb_s:,.0f} MB/s",
            f"{row.read_mb_s:,.0f} MB/s",
            f"{row.place_s:.3f} s",
        )
        for row in rows
    ]


def fidelity_table(rows: Sequence[CodecFidelity]) -> Table:
    """Columns and rows for people. Of F1 the difference to raw, with its interval."""
    columns = ["policy", "ratio", "codec", "F1", "F1 to raw", "KL to full", "top-1", "gold NLL", "n"]
    return columns, [
        (
            row.policy,
            ratio_shown(row.policy, row.ratio),
            row.codec,
            f"{row.f1:.3f}",
            _difference(row),
            f"{row.kl_to_full:.4f}",
            f"{row.top1_agreement:.3f}",
            f"{row.gold_nll:.3f}",
            str(row.n),
        )
        for row in rows
    ]


def _difference(row: CodecFidelity) -> str:
    if row.codec in ("", "raw"):
        return ""
    f1 = row.versus_raw["f1"]
    return f"{f1.mean:+.3f} ({f1.low:+.3f} to {f1.high:+.3f})"
