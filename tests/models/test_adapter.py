"""The adapter runs any family's own layers over scattered rows, and says why where it cannot."""

from __future__ import annotations

import pytest
import torch

from ragblend.errors import UnsupportedModelError
from ragblend.models.adapter import DecoderAdapter
from ragblend.models.rows import RowRun
from tests import tiny

TOKENS = 40


@pytest.fixture(scope="module")
def adapter() -> DecoderAdapter:
    return DecoderAdapter(tiny.family("gemma3"))


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.tensor(tiny.random_ids(TOKENS))


def computed(adapter: DecoderAdapter, ids: torch.Tensor, passes: list[torch.Tensor]) -> torch.Tensor:
    """Logits after computing the rows of each pass in turn on one canvas."""
    canvas = adapter.canvas(TOKENS)
    for rows in passes:
        logits = adapter.forward_rows(canvas, ids, RowRun(rows, end=TOKENS))
    assert logits is not None
    return logits


def test_rows_in_two_passes_give_the_logits_of_one(adapter, ids):
    everything = torch.arange(TOKENS)
    whole = computed(adapter, ids, [everything])
    torch.testing.assert_close(computed(adapter, ids, [everything[:25], everything[25:]]), whole)
    torch.testing.assert_close(computed(adapter, ids, [everything, everything[::3], everything[-5:]]), whole)


def test_appended_tokens_give_the_logits_of_one_pass(adapter, ids):
    canvas = adapter.canvas(TOKENS)
    adapter.append(canvas, ids[None, :30])
    appended = adapter.append(canvas, ids[None, 30:], logits=10)
    torch.testing.assert_close(appended[0, -1], computed(adapter, ids, [torch.arange(TOKENS)]))
    assert appended.shape == (1, 10, 320)
    assert canvas.get_seq_length() == TOKENS


def test_a_narrowed_pass_computes_the_chosen_rows_only(adapter, ids):
    whole = adapter.canvas(TOKENS)
    adapter.forward_rows(whole, ids, RowRun(torch.arange(TOKENS), end=TOKENS))
    narrowed = adapter.canvas(TOKENS)
    for layer in narrowed.layers:
        layer.keys.fill_(7.0)
        layer.values.fill_(7.0)
    chosen = torch.tensor([3, 20, TOKENS - 1])
    run = RowRun(torch.arange(TOKENS), end=TOKENS, narrow_before=2, narrow=lambda: chosen)
    adapter.forward_rows(narrowed, ids, run)
    torch.testing.assert_close(narrowed.keys(1), whole.keys(1))
    touched = (narrowed.keys(2) != 7.0).any(dim=3).any(dim=1)[0]
    assert touched.nonzero()[:, 0].tolist() == chosen.tolist()


def test_a_stopped_pass_gives_no_logits_and_leaves_later_layers_alone(adapter, ids):
    canvas = adapter.canvas(TOKENS)
    for layer in canvas.layers:
        layer.keys.fill_(7.0)
    assert adapter.forward_rows(canvas, ids, RowRun(torch.arange(TOKENS), end=TOKENS, stop_before=2)) is None
    assert not (canvas.keys(1) == 7.0).any()
    assert (canvas.keys(2) == 7.0).all()
    assert canvas.run is None


def test_every_layer_is_announced_before_it_is_computed(adapter, ids):
    seen: list[int] = []
    adapter.forward_rows(adapter.canvas(TOKENS), ids, RowRun(torch.arange(TOKENS), end=TOKENS, on_layer=seen.append))
    assert seen == list(range(adapter.layer_count))


REFUSED = {
    "deepseek_v3": ("multi-head latent attention", {"kv_lora_rank": 16, "n_routed_experts": 4}),
    "mamba": ("running state", {}),
    "falcon_h1": ("running state", {}),
    "qwen3_next": ("running state", {}),
    "gpt2": ("no known rotation", {}),
    "bloom": ("attention interface", {}),
    "mpt": ("attention interface", {}),
    "llama4_text": ("no known rotation", {}),
}


@pytest.mark.parametrize("model_type", REFUSED)
def test_a_family_that_cannot_serve_is_refused_by_name_with_the_reason(model_type):
    reason, settings = REFUSED[model_type]
    with pytest.raises(UnsupportedModelError, match=f"{model_type}.*{reason}"):
        DecoderAdapter(tiny.build(model_type, **settings))


def test_falcon_is_refused_because_its_rows_could_not_be_masked():
    with pytest.raises(UnsupportedModelError, match=r"falcon.*attention interface"):
        DecoderAdapter(tiny.family("falcon"))


def test_a_model_with_code_of_its_own_is_refused():
    model = tiny.family("llama")
    model.config.auto_map = {"AutoModelForCausalLM": "modeling_evil.Evil"}
    with pytest.raises(UnsupportedModelError, match="its own code"):
        DecoderAdapter(model)
