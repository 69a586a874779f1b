"""Tool calls are found in text however it comes in pieces, and text is never lost."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragblend import Engine, GenerationSettings, ToolCall, ToolCallReader, json_grammar, tool_call_grammar
from ragblend.errors import ConfigError
from tests import tiny

WEATHER = '<tool_call>\n{"name": "weather", "arguments": {"city": "Kassel", "days": 2}}\n</tool_call>'
CALL = ToolCall("weather", {"city": "Kassel", "days": 2})


def read(*pieces: str) -> tuple[str, list[ToolCall]]:
    reader = ToolCallReader()
    return "".join([*map(reader.push, pieces), reader.finish()]), reader.calls


def test_a_call_is_taken_out_of_the_text() -> None:
    assert read(f"Let me look.\n{WEATHER}") == ("Let me look.\n", [CALL])


def test_several_calls_come_in_their_order() -> None:
    assert read(WEATHER + '\n<tool_call>{"name": "now"}</tool_call>') == ("\n", [CALL, ToolCall("now", {})])


def test_a_last_call_may_lack_its_closing_mark() -> None:
    assert read(WEATHER.removesuffix("</tool_call>")) == ("", [CALL])


def test_arguments_may_be_json_in_a_string_or_be_called_parameters() -> None:
    assert read('<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}')[1] == [ToolCall("f", {"x": 1})]
    assert read('<tool_call>{"name": "f", "parameters": {"x": 1}}')[1] == [ToolCall("f", {"x": 1})]


@pytest.mark.parametrize(
    "written",
    ["", "{", "[]", "3", '{"arguments": {}}', '{"name": 3}', '{"name": "f", "arguments": 5}', "[" * 100_000],
)
def test_what_is_no_call_stays_text(written: str) -> None:
    text = f"a<tool_call>{written}</tool_call>b"
    assert read(text) == (text, [])


def test_text_before_a_call_is_shown_before_the_call_is_complete() -> None:
    reader = ToolCallReader()
    assert reader.push("Yes. <tool") == "Yes. "
    assert reader.push("box is open. <tool_call>{") == "<toolbox is open. "
    assert reader.push('"name": "f"}</tool_call>.') == "."
    assert reader.calls == [ToolCall("f", {})]


_PIECES = st.sampled_from(["<tool_call>", "</tool_call>", "<tool", "_call>", '{"name": "f"}', "<", "x"])


@given(st.lists(_PIECES, max_size=8).map("".join), st.data())
def test_pieces_make_no_difference(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(*pieces) == read(text)


@given(st.text(), st.dictionaries(st.text(), st.integers()))
def test_what_a_template_would_write_is_read_back(name: str, arguments: dict[str, int]) -> None:
    written = json.dumps({"name": name, "arguments": arguments})
    if "tool_call>" not in name + "".join(arguments):
        assert read(f"<tool_call>\n{written}\n</tool_call>") == ("", [ToolCall(name, arguments)])


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "$defs": {"City": {"enum": ["Kassel", "Ulm"]}},
                "type": "object",
                "properties": {
                    "city": {"$ref": "#/$defs/City"},
                    "days": {"type": "integer", "minimum": 1, "maximum": 9},
                },
                "required": ["city", "days"],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "additionalProperties": False}}},
]


@pytest.fixture(scope="module", params=["letter by letter", "one token each"])
def engine_of_marks(request: pytest.FixtureRequest, tiny_engine: Engine) -> Engine:
    """The marks of a call are text in the first tokenizer, and tokens in the second, as in Qwen2.5's."""
    if request.param == "letter by letter":
        return tiny_engine
    tokenizer = tiny.tokenizer()
    tokenizer.add_tokens(["<tool_call>", "</tool_call>"])
    return Engine.from_model(tiny.family("llama"), tokenizer)


@pytest.mark.parametrize("seed", range(4))
def test_a_required_call_is_always_one_of_the_tools(engine_of_marks: Engine, seed: int) -> None:
    engine = engine_of_marks
    generation = GenerationSettings(temperature=3.0, seed=seed, grammar=tool_call_grammar(TOOLS, engine.tokenizer))
    answer = engine.generate(engine.template.build([], "Weather?"), generation=generation)
    text, [call] = read(answer.text)
    assert text == ""
    if call.name == "weather":
        assert call.arguments["city"] in ("Kassel", "Ulm")
        assert 1 <= call.arguments["days"] <= 9
    else:
        assert call == ToolCall("now", {})


def test_no_call_can_be_required_of_no_tools(tiny_engine: Engine) -> None:
    with pytest.raises(ConfigError, match="no tools"):
        tool_call_grammar([], tiny_engine.tokenizer)


def test_an_answer_is_held_to_a_schema(tiny_engine: Engine) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
    generation = GenerationSettings(temperature=3.0, seed=1, grammar=json_grammar(schema))
    answer = tiny_engine.generate(tiny_engine.template.build([], "How many?"), generation=generation)
    assert answer.text in ('{"n":1}', '{"n":2}', '{"n": 1}', '{"n": 2}')
