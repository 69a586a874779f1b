"""A key changes with every part of an entry's identity."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from ragblend.store.key import KEY_VERSION, ModelIdentity, digest_fields, entry_key, token_bytes

IDENTITY = ModelIdentity(*(f"the {field.name}" for field in fields(ModelIdentity)))
PARTS = {"namespace": "a", "identity": IDENTITY, "anchor_ids": (1, 2), "token_ids": (3, 4), "codec": "raw"}


def test_the_same_parts_give_the_same_key():
    assert entry_key(**PARTS) == entry_key(**PARTS)
    assert len(entry_key(**PARTS)) == 64


@pytest.mark.parametrize("field", [field.name for field in fields(ModelIdentity)])
def test_every_field_of_the_model_identity_counts(field):
    changed = {**PARTS, "identity": replace(IDENTITY, **{field: "another"})}
    assert entry_key(**changed) != entry_key(**PARTS)


@pytest.mark.parametrize(
    "change", [{"namespace": "b"}, {"anchor_ids": (1,)}, {"token_ids": (3, 5)}, {"codec": "int8"}], ids=str
)
def test_every_other_part_counts(change):
    assert entry_key(**{**PARTS, **change}) != entry_key(**PARTS)


def test_the_format_version_counts(monkeypatch):
    before = entry_key(**PARTS)
    monkeypatch.setattr("ragblend.store.key.KEY_VERSION", KEY_VERSION + 1)
    assert entry_key(**PARTS) != before


def test_fields_do_not_run_into_each_other():
    assert digest_fields("ab", "c") != digest_fields("a", "bc")
    assert entry_key(**{**PARTS, "anchor_ids": (1, 2, 3), "token_ids": (4,)}) != entry_key(**PARTS)


def test_token_ids_are_hashed_as_little_endian_int32():
    assert token_bytes((1, 258)) == bytes([1, 0, 0, 0, 2, 1, 0, 0])
