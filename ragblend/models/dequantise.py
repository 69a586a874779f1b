"""Read a GGUF file with transformers and write it as safetensors in bfloat16.

Runs as a process of its own (``python -m ragblend.models.dequantise GGUF FOLDER``, started by
``convert``), so that the several gigabytes it may take and everything that the loader prints end
with it.
"""

from __future__ import annotations

import sys
from pathlib import Path


def dequantise(gguf: Path, folder: Path) -> None:
    """Write the weights, config, tokenizer and chat template of ``gguf`` into ``folder``."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    quantised = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    config = quantised.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.dtype = torch.bfloat16
    # A model that came from GGUF refuses to be saved: its weights move into a fresh one of the same class.
    with torch.device("meta"):
        model = type(quantised)(config)
    weights = {name: tensor.to(torch.bfloat16) for name, tensor in quantised.state_dict().items()}
    model.load_state_dict(weights, assign=True)
    model.tie_weights()
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # transformers before 5.24 takes these tokens from a table, not from the file, and names the wrong ones.
    for kind in ("bos", "eos", "pad"):
        token_id = getattr(config, f"{kind}_token_id", None)
        if token_id is not None:
            setattr(tokenizer, f"{kind}_token", tokenizer.convert_ids_to_tokens(token_id))
    tokenizer.clean_up_tokenization_spaces = False
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    dequantise(Path(sys.argv[1]), Path(sys.argv[2]))
