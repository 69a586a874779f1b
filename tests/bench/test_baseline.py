"""The full prefill that others are measured against."""

from __future__ import annotations

import pytest
import torch

from ragblend.bench.baseline import judge, transformers_attention, transformers_prefill, transformers_step_logits
from ragblend.engine import Engine
from ragblend.models.adapter import DecoderAdapter
from ragblend.models.attention import ATTENTION_NAME
from tests import tiny


def attention_of(adapter: DecoderAdapter) -> str:
    return str(adapter.model.config._attn_implementation)


def test_the_faster_median_wins() -> None:
    ours = judge([100, 300, 200], own=[1.0, 9.0, 2.0], theirs=[3.0, 3.0, 1.0], attention="sdpa")
    assert (ours.winner, ours.ragblend_won) == ("ragblend full", True)
    assert (ours.ragblend_full_s, ours.transformers_s, ours.prompt_tokens) == (2.0, 3.0, 200)
    theirs = judge([100], own=[2.0], theirs=[1.0], attention="sdpa")
    assert (theirs.winner, theirs.ragblend_won) == ("transformers sdpa", False)


def test_our_attention_is_back_whatever_happens(tiny_engine: Engine) -> None:
    adapter = tiny_engine.adapter
    with transformers_attention(adapter) as name:
        assert name == attention_of(adapter) == "sdpa"
    assert attention_of(adapter) == ATTENTION_NAME
    with pytest.raises(RuntimeError), transformers_attention(adapter):
        raise RuntimeError
    assert attention_of(adapter) == ATTENTION_NAME


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3", "gpt-oss"])
def test_it_computes_what_one_pass_computes(family: str) -> None:
    adapter = DecoderAdapter(tiny.family(family))
    ids = tiny.random_ids(50)
    with transformers_attention(adapter), torch.inference_mode():
        expected = adapter.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
        prefill = transformers_prefill(adapter, ids[:40])
        stepped = transformers_step_logits(adapter, prefill, ids[40:])
    assert prefill.seconds > 0
    torch.testing.assert_close(prefill.logits, expected[39], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(stepped, expected[39:49], atol=1e-4, rtol=1e-4)
