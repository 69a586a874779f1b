"""Each layer's rotation is found by experiment, and moves keys exactly."""

from __future__ import annotations

import pytest
import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from ragblend.models.adapter import DecoderAdapter
from ragblend.models.refusal import context_length
from tests import tiny


@pytest.mark.parametrize(
    ("family", "rotations"),
    [
        ("llama", {"half"}),
        ("cohere", {"interleaved"}),
        ("glm4", {"interleaved"}),
        ("smollm3", {"half", "none"}),
        ("gpt-oss", {"half"}),
    ],
)
def test_the_pairing_of_dimensions_is_found(family, rotations):
    assert {layer.rotation for layer in DecoderAdapter(tiny.family(family)).rotary.layers} == rotations


def test_a_layer_without_rope_is_found():
    layers = DecoderAdapter(tiny.family("smollm3")).rotary.layers
    assert [layer.rotation for layer in layers] == ["half", "half", "half", "none"]


def test_several_bases_are_told_apart():
    layers = DecoderAdapter(tiny.family("gemma3")).rotary.layers
    assert [layer.table for layer in layers] == ["sliding_attention", "full_attention"] * 2


def test_partial_rotary_turns_only_the_first_dimensions():
    rotary = DecoderAdapter(tiny.family("phi3")).rotary
    keys = torch.randn(2, 3, 12)
    turned = keys.clone()
    rotary.rotate_(0, turned, rotary.angles(torch.tensor([5, 6, 7])))
    assert torch.equal(turned[..., 6:], keys[..., 6:])
    assert not torch.isclose(turned[..., :6], keys[..., :6]).all()


@pytest.mark.parametrize("family", ["llama", "llama-linear", "llama-llama3", "mistral", "qwen2", "starcoder2"])
def test_rotation_equals_transformers_own(family):
    adapter = DecoderAdapter(tiny.family(family))
    positions = torch.tensor([0, 3, 200, 511])
    keys = torch.randn(1, 2, 4, adapter.shapes[0].head_dim)
    cos, sin = adapter.model.base_model.rotary_emb(keys, positions[None])
    _, expected = apply_rotary_pos_emb(keys, keys, cos, sin)
    ours = keys.clone()
    adapter.rotary.rotate_(0, ours, adapter.rotary.angles(positions))
    torch.testing.assert_close(ours, expected)


def test_attention_scaling_is_not_applied_by_a_rotation():
    """yarn's scaling lives in the keys once; turning them must not change their length."""
    rotary = DecoderAdapter(tiny.family("llama-yarn")).rotary
    keys = torch.randn(2, 3, 12)
    turned = keys.clone()
    rotary.rotate_(0, turned, rotary.angles(torch.tensor([1, 100, 511])))
    torch.testing.assert_close(turned.norm(dim=-1), keys.norm(dim=-1))


def test_length_dependent_scaling_is_served_only_where_it_does_not_depend_on_length():
    longrope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 6,
        "long_factor": [4.0] * 6,
    }
    model = tiny.family("phi3", rope_parameters=longrope, original_max_position_embeddings=64)
    assert context_length(model.config) == 64
    assert DecoderAdapter(model).context_length == 64
