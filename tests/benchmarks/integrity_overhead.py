"""What the checks of a hit cost, as a share of the time to the first token.

    python tests/benchmarks/integrity_overhead.py [--tokens 4096] [--chunk 512] [--repeats 5] [--ratio 0.1]

Answers a prompt of stored chunks with the embedded model, then reads the same entries as a hit does (row looked up,
header, token ids, checksum of each layer, NaN and infinity) and again with plain reads. The difference, each the best
of the repeats, is what integrity costs.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from ragblend import Engine, Prompt, Segment
from ragblend.config import BlendSettings, GenerationSettings
from ragblend.store.catalogue import Catalogue
from ragblend.store.disk import DiskStore
from ragblend.store.source import FileSource


def best(repeats: int, run: Callable[[], float]) -> float:
    return min(run() for _ in range(repeats))


def timed(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--ratio", type=float, default=0.1)
    options = parser.parse_args()
    engine = Engine()
    generator = torch.Generator().manual_seed(0)
    chunks = [
        tuple(torch.randint(100, 40_000, (options.chunk,), generator=generator).tolist())
        for _ in range(options.tokens // options.chunk)
    ]
    keys = [engine.chunk_key("bench", ids) for ids in chunks]
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(Catalogue(Path(folder) / "c.sqlite")) as catalogue:
        store = DiskStore(Path(folder), catalogue, "bench")
        for key, kv in zip(keys, engine.prefill(chunks), strict=True):
            store.put(key, kv)
        segments = [Segment("chunk", ids, key) for ids, key in zip(chunks, keys, strict=True)]
        segments.append(Segment("suffix", tuple(engine.template.text_ids("What is it about?"))))
        prompt = Prompt(tuple(segments))
        one = GenerationSettings(max_tokens=1)
        blend = BlendSettings(ratio=options.ratio)
        ttft_s = best(
            options.repeats,
            lambda: engine.generate(prompt, store=store, blend=blend, generation=one).timings.ttft_s,
        )

        def read_checked() -> None:
            for key, ids in zip(keys, chunks, strict=True):
                with contextlib.closing(store.open(key, ids)) as reader:
                    for index in range(reader.layer_count):
                        reader.layer(index)

        def read_plainly() -> None:
            for key in keys:
                with contextlib.closing(FileSource(store._path(key))) as source:
                    layer_bytes = source.nbytes // 30
                    for begin in range(0, source.nbytes - layer_bytes, layer_bytes):
                        source.read(begin, layer_bytes)

        checked_s = best(options.repeats, lambda: timed(read_checked))
        plain_s = best(options.repeats, lambda: timed(read_plainly))
    cost = checked_s - plain_s
    print(f"{options.tokens:,} tokens: first token after {ttft_s * 1e3:,.1f} ms")
    print(f"reading with checks {checked_s * 1e3:,.1f} ms, without {plain_s * 1e3:,.1f} ms")
    print(f"integrity costs {cost * 1e3:,.1f} ms, {cost / ttft_s:.2%} of the time to the first token")


if __name__ == "__main__":
    main()
