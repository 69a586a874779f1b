"""Everything that is measured on a GPU, in one run of less than 8 minutes: no network, no weights on disk.

::

    python tests/benchmarks/gpu.py --out gpu.json            # on a machine with a GPU
    python tests/benchmarks/gpu.py --out tiny.json --tiny    # tries the script itself, anywhere

First every kernel is checked against its plain form and, where it is right, timed against ceilings measured in
the same run and against torch's own attention. Then the time to the first token of whole requests, on random
weights in the shapes of known models, by policy and by where the chunks' KV lies, and the time of a decoded token. What
does not fit, or would begin too late, is reported as skipped.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from dataclasses import asdict
from pathlib import Path

import torch

from ragblend.bench.gpu import kernels, requests
from ragblend.bench.gpu.decoding import DecodingRow
from ragblend.bench.gpu.report import Table, decoding_table, kernel_table, request_table
from ragblend.bench.gpu.shapes import KNOWN_MODELS, SHAPES
from ragblend.models.load import choose_device, choose_dtype

CONTEXTS = (6 * 512, 8192, 32_768)
SECONDS = 8 * 60
KERNEL_MODELS = ("llama-3-8b", "qwen2.5-14b", "yi-34b", "llama-70b")


def measure(
    tiny: bool, device: torch.device, dtype: torch.dtype, seconds: float
) -> tuple[kernels.KernelReport, list[requests.RequestRow], list[DecodingRow]]:
    """Kernels, then requests and decoding. ``tiny``: a shape that takes seconds on a CPU."""
    deadline = time.monotonic() + seconds * 0.9  # what has begun by then also has to end
    contexts = (96,) if tiny else CONTEXTS
    models = ("tiny",) if tiny else KERNEL_MODELS
    report = kernels.run(device=device, models=models, contexts=contexts, repeats=1 if tiny else 10, dtype=dtype)
    rows: list[requests.RequestRow] = []
    decoding: list[DecodingRow] = []
    for name in ("tiny",) if tiny else KNOWN_MODELS:
        some, steps = requests.run(
            device=device,
            shape=SHAPES[name],
            contexts=contexts,
            ceilings=report.ceilings,
            repeats=1 if tiny else 3,
            dtype=dtype,
            deadline=deadline,
        )
        rows += some
        decoding += steps
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return report, rows, decoding


def show(title: str, made: Table) -> None:
    """A table in Markdown, to be put into the documentation as it is."""
    columns, rows = made
    print(f"\n{title}\n")
    for cells in (columns, ["---"] * len(columns), *rows):
        print(f"| {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--tiny", action="store_true", help="a tiny shape, on whatever device there is")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long it may take")
    arguments = parser.parse_args()
    device = choose_device("auto")
    if device.type != "cuda" and not arguments.tiny:
        raise SystemExit("no GPU here: --tiny tries the script itself on the CPU")
    began = time.monotonic()
    report, rows, decoding = measure(arguments.tiny, device, choose_dtype("auto", device), arguments.seconds)
    measured = {"requests": [asdict(row) for row in rows], "decoding": [asdict(row) for row in decoding]}
    written = {**asdict(report), **measured, "seconds": time.monotonic() - began}
    arguments.out.write_text(json.dumps(written, indent=2) + "\n")
    machine = report.machine
    print(f"{machine.device}, {machine.date}, torch {machine.torch}, triton {machine.triton or 'none'}")
    show("Kernels", kernel_table(report.rows))
    show("Time to the first token", request_table(rows))
    show("A decoded token", decoding_table(decoding))


if __name__ == "__main__":
    main()
