"""A quantised GGUF file's weights in float16: the model that everybody else runs, in llama.cpp's form."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
from gguf.constants import Keys
from gguf.quants import dequantize

from ragblend.models.convert import models_directory, partial_folder, sync

_PLAIN = (GGMLQuantizationType.F32, GGMLQuantizationType.F16)
_OF_THE_FILE = "GGUF."
_WRITTEN_ANEW = (Keys.General.ARCHITECTURE, Keys.General.FILE_TYPE)


def unpacked_gguf(gguf: Path) -> Path:
    """The file with ``gguf``'s weights in float16: from the cache, or made now.

    Raises ModelError where the disk does not let it.
    """
    with gguf.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    target = models_directory() / f"{gguf.stem}-{digest[:32]}-f16.gguf"
    if not target.is_file():
        with partial_folder(target.parent) as partial:
            _unpack(gguf, partial / target.name)
            sync(partial / target.name)
            (partial / target.name).replace(target)
            sync(target.parent)
    return target


def _unpack(gguf: Path, target: Path) -> None:
    reader = GGUFReader(gguf)
    writer = GGUFWriter(target, reader.fields[Keys.General.ARCHITECTURE].contents())
    writer.add_file_type(LlamaFileType.MOSTLY_F16)
    for field in reader.fields.values():
        if field.name.startswith(_OF_THE_FILE) or field.name in _WRITTEN_ANEW:
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=inner)
    for tensor in reader.tensors:
        if tensor.tensor_type in _PLAIN:
            writer.add_tensor(tensor.name, np.asarray(tensor.data), raw_dtype=tensor.tensor_type)
        else:
            writer.add_tensor(tensor.name, dequantize(tensor.data, tensor.tensor_type).astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
