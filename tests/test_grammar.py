"""Answers that follow a grammar, from a model that would never write them by itself."""

from __future__ import annotations

import json
import sys

import pytest

from ragblend.config import GenerationSettings
from ragblend.errors import ConfigError

WORD = 'start: "yes" | "no" | "perhaps"'
PERSON = """start: "<call>" %json {
  "type": "object",
  "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
  "required": ["name", "age"],
  "additionalProperties": false,
  "x-guidance": {"whitespace_flexible": false}
} "</call>"
"""


def ask(engine, grammar, **settings):
    prompt = engine.template.build([], "Who?")
    return engine.generate(prompt, generation=GenerationSettings(grammar=grammar, **settings))


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_an_answer_is_one_of_the_words(tiny_engine, temperature):
    answer = ask(tiny_engine, WORD, temperature=temperature, seed=1, top_k=3)
    assert answer.text in ("yes", "no", "perhaps")
    assert answer.finish_reason == "stop"


@pytest.mark.parametrize("seed", range(4))
def test_an_answer_fits_its_json_schema(tiny_engine, seed):
    answer = ask(tiny_engine, PERSON, temperature=2.0, seed=seed)
    person = json.loads(answer.text.removeprefix("<call>").removesuffix("</call>"))
    assert set(person) == {"name", "age"}
    assert len(person["name"]) <= 5
    assert 0 <= person["age"] <= 99


def test_a_limit_on_length_cuts_it(tiny_engine):
    answer = ask(tiny_engine, PERSON, max_tokens=8)
    assert answer.text == '<call>{"'
    assert answer.finish_reason == "length"


def test_requests_with_and_without_a_grammar_do_not_meet(tiny_engine):
    free = ask(tiny_engine, None, max_tokens=8)
    ask(tiny_engine, WORD)
    assert ask(tiny_engine, None, max_tokens=8).token_ids == free.token_ids


def test_a_bad_grammar_is_refused_at_once(tiny_engine):
    prompt = tiny_engine.template.build([], "Who?")
    with pytest.raises(ConfigError, match="unknown name"):
        tiny_engine.stream(prompt, generation=GenerationSettings(grammar="start: nothing"))


def test_without_llguidance_the_error_says_what_to_install(tiny_engine, monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ConfigError, match=r"pip install 'ragblend\[grammar\]'"):
        ask(tiny_engine, WORD)
