"""Packed weights: the same products in less time, and nothing else about the model changes."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import nn

from ragblend import Engine, Prompt, Segment
from ragblend.blend.gate import run_gate
from ragblend.models import packed
from ragblend.models.adapter import DecoderAdapter
from ragblend.models.identity import model_identity
from ragblend.models.packed import PackedLinear, can_pack, pack_linears
from tests import tiny

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.bfloat16)
# Sums in another order: what rounding makes of numbers around 1, in bfloat16 too.
NEAR = {"rtol": 0.02, "atol": 1e-3}


def require(dtype: torch.dtype) -> None:
    if not can_pack(CPU, dtype):
        pytest.skip(f"oneDNN does not multiply packed {dtype} on this CPU")


def linears(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, nn.Linear | PackedLinear)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(0,), (1,), (3, 0), (2, 5), (1, 63), (1, 700)])
def test_the_product_is_the_plain_ones(dtype: torch.dtype, bias: bool, shape: tuple[int, ...]) -> None:
    require(dtype)
    torch.manual_seed(1)
    linear = nn.Linear(70, 130, bias=bias, dtype=dtype)
    inputs = torch.randn(*shape, 70, dtype=dtype)
    with torch.inference_mode():
        product = PackedLinear(linear)(inputs)
    torch.testing.assert_close(product, linear(inputs).detach(), **NEAR)


@pytest.mark.parametrize("dtype", DTYPES)
def test_inputs_need_not_be_contiguous(dtype: torch.dtype) -> None:
    require(dtype)
    linear = nn.Linear(70, 33, dtype=dtype)
    inputs = torch.randn(70, 4, 3, dtype=dtype).transpose(0, 2)
    torch.testing.assert_close(PackedLinear(linear)(inputs).detach(), linear(inputs).detach(), **NEAR)


def test_all_linears_of_a_model_are_packed_and_its_state_is_as_before() -> None:
    require(torch.float32)
    model = tiny.family("qwen2")  # with biases
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    count = len(linears(model))
    assert pack_linears(model) == count > 0
    assert all(type(module) is PackedLinear for module in linears(model))
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert pack_linears(model) == 0, "what is packed is packed once"


def test_a_model_is_who_it_was() -> None:
    adapter, tokenizer = DecoderAdapter(tiny.family("llama")), tiny.tokenizer()
    before = model_identity(adapter.model, tokenizer, adapter.rotary)
    pack_linears(adapter.model)
    assert model_identity(adapter.model, tokenizer, adapter.rotary) == before


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_packed_model_passes_the_gate_and_stays_in_its_dtype(dtype: torch.dtype) -> None:
    require(dtype)
    require(torch.float32)
    model = tiny.family("llama").to(dtype)
    pack_linears(model)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert run_gate(DecoderAdapter(model), "llama").passed
    after = model.state_dict()
    assert {tensor.dtype for tensor in after.values()} == {tensor.dtype for tensor in before.values()}
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_layers_that_are_more_than_plain_stay() -> None:
    class Scaled(nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(inputs)

    hooked = nn.Linear(8, 8)
    hooked.register_forward_hook(lambda *_: None)
    normalised = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
    model = nn.Sequential(Scaled(8, 8), hooked, normalised)
    kept = list(model)
    assert pack_linears(model) == 0
    assert list(model) == kept


def test_weights_that_adapters_can_be_merged_into_stay() -> None:
    model = inject_adapter_in_model(LoraConfig(target_modules=["q_proj"]), tiny.family("llama"))
    assert pack_linears(model) == 0


@pytest.mark.parametrize("missing", [AttributeError("no such operator"), RuntimeError("no instruction for it")])
def test_a_cpu_or_torch_that_cannot_keeps_plain_weights(missing: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(weight: torch.Tensor) -> torch.Tensor:
        raise missing

    monkeypatch.setattr(packed, "_pack", refuse)
    can_pack.cache_clear()
    try:
        model = tiny.family("llama")
        assert pack_linears(model) == 0
        assert all(type(module) is nn.Linear for module in linears(model))
    finally:
        can_pack.cache_clear()


def test_wrong_products_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    require(torch.float32)
    multiply = packed._multiply
    monkeypatch.setattr(packed, "_multiply", lambda *arguments: 1.1 * multiply(*arguments))
    can_pack.cache_clear()
    try:
        assert not can_pack(CPU, torch.float32)
    finally:
        can_pack.cache_clear()


def test_other_devices_and_processors_keep_plain_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not can_pack(torch.device("meta"), torch.float32)
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    assert not can_pack.__wrapped__(CPU, torch.float32)


def test_an_engine_packs_what_it_loaded_and_leaves_what_it_was_given(tmp_path) -> None:
    require(torch.float32)
    model, tokenizer = tiny.family("llama"), tiny.tokenizer()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = Engine(tmp_path, device="cpu", dtype="float32")
    given = Engine.from_model(model, tokenizer)
    assert all(type(module) is PackedLinear for module in linears(loaded.adapter.model))
    assert all(type(module) is nn.Linear for module in linears(given.adapter.model))
    assert loaded.identity == given.identity
    prompt = Prompt((Segment("suffix", tiny.random_ids(30)),))
    assert loaded.generate(prompt).text == given.generate(prompt).text
