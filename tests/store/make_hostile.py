"""Makes the files in ``hostile/``, each a sound entry with one thing wrong. Run: python -m tests.store.make_hostile."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ragblend.kernels.layout import LayerKV
from ragblend.store.base import ChunkKV
from ragblend.store.codecs import StoreCodec
from ragblend.store.format import checksum, encode_chunk
from ragblend.store.key import digest_fields

FOLDER = Path(__file__).with_name("hostile")
KEY = digest_fields("hostile")


def entry(fill: float = 1.0, key: str = KEY, codec: str = "raw") -> bytes:
    layers = tuple(LayerKV(torch.full((1, 2, 2), fill + n), torch.full((1, 2, 2), -fill)) for n in range(2))
    return b"".join(encode_chunk(key, ChunkKV((1, 2), layers), StoreCodec.named(codec)))


SOUND = entry()
BEGIN = 8 + int.from_bytes(SOUND[:8], "little")
HEADER, DATA = SOUND[8:BEGIN], SOUND[BEGIN:]


def with_header(header: bytes, data: bytes = DATA) -> bytes:
    return len(header).to_bytes(8, "little") + header + data


def edited(edit: Callable[[dict[str, Any]], object], data: bytes = DATA, header: bytes = HEADER) -> bytes:
    fields = json.loads(header)
    edit(fields)
    return with_header(json.dumps(fields).encode(), data)


def compact(edit: Callable[[dict[str, Any]], object], codec: str = "int8") -> bytes:
    sound = entry(codec=codec)
    begin = 8 + int.from_bytes(sound[:8], "little")
    return edited(edit, sound[begin:], sound[8:begin])


def bomb(fields: dict[str, Any]) -> None:
    """A layer of a terabyte in a few bytes, under a checksum that is right."""
    label = f"BF16/1x2x{1 << 38}"
    frame = entry(codec="raw+zstd")[-fields["layer.00001"]["shape"][0] :]
    fields["__metadata__"]["layer.00001"] = f"{checksum(KEY, 'layer.00001', f'raw+zstd/{label}', [frame])} {label}"


def checksums_of(other: bytes) -> Callable[[dict[str, Any]], object]:
    begin = 8 + int.from_bytes(other[:8], "little")
    metadata = json.loads(other[8:begin])["__metadata__"]
    return lambda fields: fields["__metadata__"].update(metadata, key=KEY)


def reshaped(fields: dict[str, Any], shape: str) -> None:
    stated = fields["__metadata__"]["layer.00000"]
    fields["__metadata__"]["layer.00000"] = f"{stated.rpartition('/')[0]}/{shape}"


HOSTILE: dict[str, bytes] = {
    "empty": b"",
    "a-pickle": pickle.dumps({"layer.00000": [1, 2]}),
    "header-larger-than-the-file": (1 << 40).to_bytes(8, "little") + SOUND[8:],
    "header-length-of-all-ones": b"\xff" * 8 + SOUND[8:],
    "header-deeply-nested": with_header(b'{"a":' * 4000),
    "header-is-a-list": with_header(b"[]"),
    "header-is-not-utf8": with_header(HEADER.replace(b"ragblend", b"ragbl\xff\xfed")),
    "name-stands-twice": with_header(HEADER.rstrip()[:-1] + b',"token_ids":{}}'),
    "no-layers": edited(lambda fields: [fields.pop("layer.00000"), fields.pop("layer.00001")]),
    "layers-overlap": edited(lambda f: f["layer.00001"].update(data_offsets=f["layer.00000"]["data_offsets"])),
    "offsets-outside-the-file": edited(lambda f: f["layer.00001"].update(data_offsets=[40, 1 << 62])),
    "offsets-negative": edited(lambda f: f["layer.00000"].update(data_offsets=[-8, 24])),
    "shape-overflows": edited(lambda f: f["layer.00000"].update(shape=[2, 1 << 32, 2, 1 << 32])),
    "shape-negative": edited(lambda f: f["layer.00000"].update(shape=[2, -1, -2, 2])),
    "shape-of-floats": edited(lambda f: f["layer.00000"].update(shape=[2.0, 1.0, 2.0, 2.0])),
    "type-of-objects": edited(lambda f: f["layer.00000"].update(dtype="O")),
    "another-key": entry(key=digest_fields("another")),
    "another-version": edited(lambda f: f["__metadata__"].update(version="3")),
    "another-entry-renamed": edited(checksums_of(entry(2.0, digest_fields("another"))), entry(2.0)[BEGIN:]),
    "layers-exchanged": with_header(HEADER, DATA[:8] + DATA[40:] + DATA[8:40]),
    "bytes-behind-the-end": SOUND + b"\0",
    "compact-of-another-codec": compact(lambda fields: fields["__metadata__"].update(codec="fp8")),
    "compact-in-the-older-version": compact(lambda fields: fields["__metadata__"].update(version="1")),
    "compact-of-another-shape": compact(lambda f: reshaped(f, "1x4x2")),
    "compressed-to-a-terabyte": compact(bomb, "raw+zstd"),
    "cut-short": SOUND[:-1],
    "one-bit-flipped": SOUND[:-1] + bytes([SOUND[-1] ^ 1]),
}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, content in HOSTILE.items():
        (FOLDER / f"{name}.safetensors").write_bytes(content)
