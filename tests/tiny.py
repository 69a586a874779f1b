"""Tiny random models of each supported family and a byte-level tokenizer, built in the process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast, logging
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

CHAT_TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
SPECIAL = ["<|start|>", "<|end|>", "<|pad|>"]
VOCABULARY = 256 + len(SPECIAL)

_COMMON: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 258,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "initializer_range": 0.25,
}
_MIXED = ["sliding_attention", "full_attention"] * 2
_MOE: dict[str, Any] = {"num_experts_per_tok": 2}


def _rope(**parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 10000.0, **parameters}}


# name -> (transformers model type, settings on top of the common ones)
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"tie_word_embeddings": True}),
    "llama-linear": ("llama", _rope(rope_type="linear", factor=4.0)),
    "llama-llama3": (
        "llama",
        _rope(
            rope_type="llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=64,
        ),
    ),
    "llama-yarn": ("llama", _rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)),
    "llama-mqa": ("llama", {"num_key_value_heads": 1}),
    "mistral": ("mistral", {"sliding_window": 24, "head_dim": 16}),
    "mixtral": ("mixtral", {**_MOE, "num_local_experts": 4}),
    "qwen2": ("qwen2", {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 2}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "qwen3-moe": ("qwen3_moe", {**_MOE, "num_experts": 4, "moe_intermediate_size": 32, "head_dim": 16}),
    "gemma2": (
        "gemma2",
        {"head_dim": 16, "sliding_window": 24, "attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 16},
    ),
    "gemma3": (
        "gemma3_text",
        {"head_dim": 16, "sliding_window": 24, "layer_types": _MIXED, "query_pre_attn_scalar": 16},
    ),
    "phi3": ("phi3", {**_rope(rope_type="default", partial_rotary_factor=0.5)}),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 1, 1, 0]}),
    "glm4": ("glm4", {"head_dim": 16}),
    "cohere": ("cohere", {"logit_scale": 0.5}),
    "olmo2": ("olmo2", {}),
    "granite": ("granite", {"embedding_multiplier": 2.0, "residual_multiplier": 0.5, "attention_multiplier": 0.2}),
    "gpt-oss": (
        "gpt_oss",
        {**_MOE, "head_dim": 16, "num_local_experts": 4, "sliding_window": 24, "layer_types": _MIXED},
    ),
    "starcoder2": ("starcoder2", {"sliding_window": None}),
    "falcon": ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "alibi": False}),
}


def build(model_type: str, seed: int = 0, **settings: Any) -> PreTrainedModel:
    """A random fp32 model of ``model_type`` on the CPU, in evaluation mode."""
    config = CONFIG_MAPPING[model_type](**{**_COMMON, **settings})
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for name, parameter in model.named_parameters():
        if "sinks" in name:  # left unset by transformers' own initialisation
            torch.nn.init.normal_(parameter)
    return model.eval()


def family(name: str, seed: int = 0, **settings: Any) -> PreTrainedModel:
    """A tiny model of one of ``FAMILIES``."""
    model_type, defaults = FAMILIES[name]
    return build(model_type, seed, **{**defaults, **settings})


def tokenizer(
    chat_template: str | None = CHAT_TEMPLATE, merges: Sequence[tuple[str, str]] = ()
) -> PreTrainedTokenizerFast:
    """One token a byte, plus three control tokens and a chat template. merges: tokens that become one."""
    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *map("".join, merges)]
    vocabulary = {letter: index for index, letter in enumerate(letters)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges)))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(SPECIAL)
    made = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<|start|>", eos_token="<|end|>", pad_token="<|pad|>"
    )
    made.chat_template = chat_template
    return made


def random_ids(count: int, seed: int = 0) -> tuple[int, ...]:
    """``count`` ordinary token ids."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(0, 256, (count,), generator=generator).tolist())


Builder = Callable[[], PreTrainedModel]
logging.set_verbosity_error()
