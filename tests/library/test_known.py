"""Known texts are found whatever white space a template leaves at their ends, and only what is shown is reused."""

from __future__ import annotations

import pytest

from ragblend.config import GenerationSettings
from ragblend.engine import Engine
from ragblend.library.library import Library
from ragblend.prompt import Message
from tests import tiny

SHORT = GenerationSettings(max_tokens=4)
CHUNK = "[Warranty]\nThe warranty of the robot lasts two years."


def ask(library: Library, text: str, **options):
    return library.chat([Message("user", (text,))], generation=SHORT, **options).complete()


@pytest.fixture
def indexed(library, docs) -> Library:
    """With a chunk that is ``CHUNK`` and a blank line."""
    library.add([docs])
    return library


@pytest.mark.parametrize(
    ("behind", "reused"),
    [
        ("\n\nQuestion: how long?", len(CHUNK) + 2),
        ("\n\n\n\nQuestion: how long?", len(CHUNK) + 2),
        ("\n---------------------\nQuery: how long?", len(CHUNK)),
        ("\n \nQuestion: how long?", len(CHUNK)),
        (" How long?", len(CHUNK)),
        ("</document>", len(CHUNK)),
    ],
)
@pytest.mark.parametrize("before", ["", "\n\n\t", "<document>"])
def test_a_chunk_with_as_much_of_its_blank_line_as_is_there(indexed, before, behind, reused):
    prompt = f"Context:\n{before}{CHUNK}{behind}"
    answer = ask(indexed, prompt)
    assert (answer.hits, answer.misses, answer.matched_tokens) == (1, 0, reused)
    assert answer.usage.prompt_tokens == ask(indexed, prompt, policy="full").usage.prompt_tokens
    assert ask(indexed, prompt, ratio=1.0).token_ids == ask(indexed, prompt, policy="full").token_ids


def test_the_rows_of_a_beginning_are_those_of_the_whole(open_library, make_engine, docs):
    """Right behind the anchor they are exact: nothing needs to be computed again."""
    library = open_library(engine=make_engine(preamble=""))
    library.add([docs])
    messages = [
        Message("system", (library.engine.template.system,)),
        Message("user", (f"Documents:\n\n{CHUNK}\nHow long?",)),
    ]
    blended, full = (library.chat(messages, generation=SHORT, policy=policy).complete() for policy in ("none", "full"))
    assert blended.usage.cached_tokens == len(library.engine.anchor_ids) + len(CHUNK)
    assert blended.token_ids == full.token_ids


def test_a_token_that_reaches_into_the_white_space_is_computed(open_library, docs):
    """Many tokenizers have a token for a full stop and the line breaks behind it."""
    model = tiny.family("llama", max_position_embeddings=4096, num_hidden_layers=2)
    joining = tiny.tokenizer(merges=[(".", "Ċ"), (".Ċ", "Ċ")])
    library = open_library(engine=Engine.from_model(model, joining, name="joining"))
    library.add([docs])
    for behind, reused in (("\n\nHow long?", len(CHUNK)), ("\n--\nHow long?", len(CHUNK) - 1)):
        prompt = f"Documents:\n\n{CHUNK}{behind}"
        answer, full = ask(library, prompt, ratio=1.0), ask(library, prompt, policy="full")
        assert (answer.hits, answer.matched_tokens) == (1, reused)
        assert (answer.usage.prompt_tokens, answer.token_ids) == (full.usage.prompt_tokens, full.token_ids)


def test_a_chunk_whose_kv_is_gone_is_computed_again_as_a_whole(indexed):
    [hit] = indexed.search("warranty", k=1)
    indexed.store.delete(hit.segment.key)
    answer = ask(indexed, f"Context:\n{CHUNK}\n---\nHow long?")
    assert (answer.hits, answer.misses) == (0, 1)
    assert answer.learning == len(CHUNK) + 2
    assert indexed.wait(30)
    assert indexed.store.contains(hit.segment.key)


def test_texts_that_differ_by_white_space_only_stand_in_for_each_other(indexed):
    indexed.precompute([f"  {CHUNK}\n"])
    for behind in ("\n\nHow long?", " How long?"):
        assert ask(indexed, CHUNK + behind).hits == 1
    indexed.forget([CHUNK])
    assert ask(indexed, f"{CHUNK} How long?").hits == 1
