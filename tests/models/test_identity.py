"""One thing about a model is changed at a time: its chunks have other keys, and nothing stored is used."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from transformers import PreTrainedModel

from ragblend.config import GenerationSettings
from ragblend.engine import Engine
from ragblend.errors import LibraryMismatchError
from ragblend.library.library import Library
from ragblend.models.identity import model_identity
from ragblend.models.rope import RotaryGeometry
from ragblend.store.memory import MemoryStore
from tests import tiny

IDS = tuple(range(30, 60))


class Words:
    """An embedder for which all texts are alike."""

    name = digest = "words"

    def embed_chunks(self, texts):
        return torch.ones(len(texts), 4).numpy() / 2

    def embed_question(self, text):
        return self.embed_chunks([text])[0]


def with_lora(alpha: int = 4, seed: int = 0) -> PreTrainedModel:
    model = tiny.family("llama")
    torch.manual_seed(seed)
    config = LoraConfig(r=2, lora_alpha=alpha, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    return inject_adapter_in_model(config, model).eval()


def rescaled(factor: float) -> PreTrainedModel:
    """An adapter whose strength was changed after loading: neither configuration nor weights say so."""
    model = with_lora()
    for module in model.modules():
        if isinstance(getattr(module, "scaling", None), dict):
            module.scaling["default"] *= factor
    return model


def other_tokenizer():
    made = tiny.tokenizer()
    made.add_tokens(["robot"])
    return made


def with_quantisation(bits: int) -> PreTrainedModel:
    model = tiny.family("llama")
    model.config.quantization_config = {"quant_method": "some", "bits": bits}
    return model


def rope(**parameters) -> dict:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, **parameters}}


Made = Callable[[], Engine]


def engine(model: PreTrainedModel | None = None, tokenizer=None, **options: str) -> Engine:
    return Engine.from_model(model or tiny.family("llama"), tokenizer or tiny.tokenizer(), name="tiny", **options)


# What is changed -> an engine before and an engine after.
CHANGES: dict[str, tuple[Made, Made]] = {
    "weights under the same name": (engine, lambda: engine(tiny.family("llama", seed=1))),
    "tokenizer": (engine, lambda: engine(tokenizer=other_tokenizer())),
    "chat template": (engine, lambda: engine(tokenizer=tiny.tokenizer(tiny.CHAT_TEMPLATE.replace("<|end|>", "")))),
    "chat template behind the chunks": (
        engine,
        lambda: engine(tokenizer=tiny.tokenizer(tiny.CHAT_TEMPLATE.replace("assistant\n", "assistant: "))),
    ),
    "system prompt": (engine, lambda: engine(system="Other words.")),
    "dtype": (engine, lambda: engine(tiny.family("llama").to(torch.bfloat16))),
    "LoRA added": (engine, lambda: engine(with_lora())),
    "LoRA bytes": (lambda: engine(with_lora()), lambda: engine(with_lora(seed=1))),
    "LoRA scale": (lambda: engine(with_lora()), lambda: engine(with_lora(alpha=8))),
    "LoRA scale after loading": (lambda: engine(with_lora()), lambda: engine(rescaled(0.5))),
    "RoPE theta": (engine, lambda: engine(tiny.family("llama", **rope(rope_theta=50_000.0)))),
    "RoPE scaling": (engine, lambda: engine(tiny.family("llama-linear"))),
    "sliding window": (
        lambda: engine(tiny.family("mistral")),
        lambda: engine(tiny.family("mistral", sliding_window=32)),
    ),
    "a number of the configuration": (engine, lambda: engine(tiny.family("llama", rms_norm_eps=1e-3))),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_never_reused(change, tmp_path):
    before, after = (make() for make in CHANGES[change])
    assert before.chunk_key("a", IDS) != after.chunk_key("a", IDS)
    store = MemoryStore(1 << 30)
    store.put(before.chunk_key("a", IDS), next(iter(before.prefill([IDS]))))
    assert store.open(after.chunk_key("a", IDS), IDS) is None
    assert store.misses == {"missing": 1}

    document = tmp_path / "a.txt"
    document.write_text("The robot mows the lawn.")
    with Library.open(tmp_path / "a.rag", engine=before, embedder=Words()) as library:
        library.add(document)
    with pytest.raises(LibraryMismatchError):
        Library.open(tmp_path / "a.rag", engine=after, embedder=Words())
    with Library.open(tmp_path / "a.rag", engine=before, embedder=Words()) as library:
        answer = library.ask("robot", k=1, policy="none", generation=GenerationSettings(max_tokens=1))
        assert answer.usage.cached_tokens > 0


def test_what_makes_no_difference():
    """A copy under another name, in another object, gives the same keys."""
    first, second = engine(), Engine.from_model(tiny.family("llama"), tiny.tokenizer(), name="another name")
    assert first.chunk_key("a", IDS) == second.chunk_key("a", IDS)
    assert engine(with_lora()).identity == engine(with_lora()).identity


def identity_of(model: PreTrainedModel):
    return model_identity(model, tiny.tokenizer(), RotaryGeometry(None, ()))


def test_quantisation_counts():
    plain, four, eight = tiny.family("llama"), with_quantisation(4), with_quantisation(8)
    assert len({identity_of(model).quantisation for model in (plain, four, eight)}) == 3
    assert len({identity_of(model).config for model in (plain, four, eight)}) == 1


def test_the_order_of_a_set_does_not_count():
    """It is another one in every process."""

    class Config:
        def __init__(self, modules):
            self.modules = modules

        def to_dict(self):
            return {"target_modules": self.modules}

    class Unordered(set):
        def __iter__(self):
            return iter(sorted(super().__iter__(), reverse=True))

    digests = set()
    for modules in ({"q_proj", "v_proj"}, Unordered(["q_proj", "v_proj"])):
        model = tiny.family("llama")
        model.peft_config = {"default": Config(modules)}
        digests.add(identity_of(model).adapter)
    assert len(digests) == 1
