"""Feeds arbitrary layers to the reader of chunk KV files, under a header and checksums that fit them.

Checksums find damage, and whoever forges a file computes them anew. So what stands behind them has to be harmless by
itself: numbers that are no numbers, and compressed data that are none, or of another size than they say.
"""

from __future__ import annotations

import json

from ragblend.config import CODECS
from ragblend.store.codecs import StoreCodec
from ragblend.store.format import DTYPES, checksum
from ragblend.store.key import token_bytes
from tests.fuzz.entry import read_entry
from tests.store.make_hostile import KEY

TYPES = {"raw": "F32", "int8": "I8", "fp8": "F8_E4M3", "int4": "U8"}


def forge(content: bytes) -> bytes:
    """A file with one layer, of the codec and shape that the first bytes say, and of what follows them."""
    first, rest = content[:4].ljust(4, b"\0"), content[4:]
    codec = StoreCodec.named(CODECS[first[0] % len(CODECS)])
    shape = tuple(1 + byte % 8 for byte in first[1:])
    dtype = TYPES[codec.numbers]
    nbytes = codec.layer_bytes(DTYPES[dtype], shape)
    layer = rest if codec.zstd and rest else rest[:nbytes].ljust(nbytes, b"\0")
    ids = token_bytes(range(shape[1]))
    metadata = {"format": "ragblend.chunk-kv", "version": "1", "key": KEY}
    metadata["token_ids"] = checksum(KEY, "token_ids", f"I32/{shape[1]}", [ids])
    sizes = "x".join(map(str, shape))
    if codec == StoreCodec():
        field = {"dtype": dtype, "shape": [2, *shape]}
        metadata["layer.00000"] = checksum(KEY, "layer.00000", f"{dtype}/2x{sizes}", [layer])
    else:
        field = {"dtype": "U8", "shape": [len(layer)]}
        digest = checksum(KEY, "layer.00000", f"{codec.name}/{dtype}/{sizes}", [layer])
        metadata |= {"version": "2", "codec": codec.name, "layer.00000": f"{digest} {dtype}/{sizes}"}
    field["data_offsets"] = [len(ids), len(ids) + len(layer)]
    tensors = {"token_ids": {"dtype": "I32", "shape": [shape[1]], "data_offsets": [0, len(ids)]}, "layer.00000": field}
    header = json.dumps({"__metadata__": metadata, **tensors}).encode()
    return len(header).to_bytes(8, "little") + header + ids + layer


def read_forged(content: bytes) -> int:
    """Read what is forged from ``content``; how many layers it gave."""
    return read_entry(forge(content))
