"""Tool calls: read from what the model writes, or forced by a grammar; on a tiny random model."""

from __future__ import annotations

import json
from typing import Literal

import pytest
from langchain_core.exceptions import OutputParserException
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import tool
from pydantic import BaseModel, Field

from langchain_ragblend import ChatRagBlend
from langchain_ragblend.chat_models import _Asked
from ragblend.errors import ConfigError

from ..conftest import tiny_engine

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln", "days": 2}}\n</tool_call>'


@tool
def weather(city: Literal["Köln", "Kassel"], days: int = 1) -> str:
    """The weather of the next days."""
    return f"{city}: rain for {days} days"


@tool
def clock() -> str:
    """The time of day."""
    return "noon"


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=6)
    age: int = Field(ge=0, le=120)
    pet: Literal["cat", "dog"] | None = None


@pytest.fixture
def llm(engine_with_tools):
    with ChatRagBlend(engine=engine_with_tools, max_tokens=200) as made:
        yield made


def rendered(llm, tools):
    stream = llm._ask([HumanMessage("Hello")], tools=llm.bind_tools(tools).kwargs["tools"]).stream
    return llm.engine.tokenizer.decode(stream._prompt.token_ids)


class Said:
    """An answer stream of which everything is known but the text."""

    def __init__(self, answer):
        self.answer = answer


def message_from(llm, *said: str, forced: bool = False) -> AIMessage:
    """The message that is made of text that a model wrote, piece by piece."""
    finished = llm._ask([HumanMessage("Hello")], max_tokens=1)
    answer = finished.stream.complete()
    asked = _Asked(Said(answer), finished.settings, reads_calls=True, forced=forced)
    chunks = [chunk.message for piece in said for chunk in asked.push(piece)] + [c.message for c in asked.finish()]
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert isinstance(whole, AIMessageChunk)
    return whole


def test_tools_are_shown_to_the_model_by_its_template(llm):
    prompt = rendered(llm, [weather, Person])
    assert '"name": "weather", "description": "The weather of the next days."' in prompt
    assert '"name": "Person"' in prompt


def test_calls_are_read_from_what_the_model_writes(llm):
    message = message_from(llm, f"Let me look.\n{CALL}")
    assert message.content == "Let me look."
    (call,) = message.tool_calls
    assert (call["name"], call["args"], call["type"]) == ("weather", {"city": "Köln", "days": 2}, "tool_call")
    assert call["id"]
    assert message.response_metadata["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("size", [1, 3, 7])
def test_calls_are_read_in_a_stream_of_any_pieces(llm, size):
    text = f"A.\n{CALL}\n{CALL.replace('Köln', 'Kassel')} B < C"
    message = message_from(llm, *(text[i : i + size] for i in range(0, len(text), size)))
    assert [call["args"]["city"] for call in message.tool_calls] == ["Köln", "Kassel"]
    assert message.content.split() == ["A.", "B", "<", "C"]
    assert len({call["id"] for call in message.tool_calls}) == 2


def test_what_is_no_call_stays_text(llm):
    message = message_from(llm, '<tool_call>{"nonsense"}</tool_call>')
    assert (message.content, message.tool_calls) == ('<tool_call>{"nonsense"}</tool_call>', [])


@pytest.mark.parametrize("choice", ["any", "required", True])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_forced_call_is_one_of_the_tools_with_arguments_that_fit(llm, choice, seed):
    answer = llm.bind_tools([weather, clock], tool_choice=choice).invoke("Hello", temperature=2.0, seed=seed)
    (call,) = answer.tool_calls
    assert answer.content == ""
    assert call["name"] in ("weather", "clock")
    assert {"weather": weather, "clock": clock}[call["name"]].invoke(call["args"])


@pytest.mark.parametrize("choice", ["clock", {"type": "function", "function": {"name": "clock"}}])
def test_a_forced_call_may_be_of_one_tool(llm, choice):
    for answer in (
        llm.bind_tools([weather, clock], tool_choice=choice).invoke("Hello"),
        sum_of(llm.bind_tools([weather, clock], tool_choice=choice).stream("Hello")),
    ):
        assert [(call["name"], call["args"]) for call in answer.tool_calls] == [("clock", {})]


def sum_of(chunks):
    whole = next(chunks)
    for chunk in chunks:
        whole += chunk
    return whole


def test_tools_that_must_not_be_called_are_not_shown(llm):
    asked = [each.invoke("Hello", max_tokens=4) for each in (llm.bind_tools([weather], tool_choice="none"), llm)]
    assert len({message.usage_metadata["input_tokens"] for message in asked}) == 1


def test_a_forced_call_that_is_cut_says_so(llm):
    with pytest.raises(OutputParserException, match="max_tokens=5 cut the tool call"):
        llm.bind_tools([weather], tool_choice="any").invoke("Hello", max_tokens=5)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_structured_output_fits_its_schema(llm, seed):
    person = llm.bind(temperature=2.0, seed=seed)
    structured = ChatRagBlend(library=llm.library, temperature=2.0, seed=seed).with_structured_output(Person)
    found = structured.invoke("Who?")
    assert isinstance(found, Person)
    assert person.invoke("Who?", max_tokens=3).content is not None


async def test_structured_output_by_json_schema_and_async(llm):
    structured = llm.with_structured_output(Person.model_json_schema(), include_raw=True)
    found = await structured.ainvoke("Who?")
    assert Person.model_validate(found["parsed"])
    assert found["parsing_error"] is None
    assert isinstance(found["raw"], AIMessage)


def test_a_conversation_with_calls_and_results_goes_through_the_template(llm):
    call = {"name": "weather", "args": {"city": "Köln"}, "id": "1", "type": "tool_call"}
    history = [HumanMessage("Rain?"), AIMessage("", tool_calls=[call]), ToolMessage("No.", tool_call_id="1")]
    stream = llm._ask(history, tools=llm.bind_tools([weather]).kwargs["tools"]).stream
    prompt = llm.engine.tokenizer.decode(stream._prompt.token_ids)
    assert json.dumps({"name": "weather", "arguments": {"city": "Köln"}}, ensure_ascii=False) in prompt
    assert "<tool_response>\nNo.\n</tool_response>" in prompt


def test_a_template_without_tools_is_refused(engine):
    with ChatRagBlend(engine=engine) as llm:
        with pytest.raises(NotImplementedError, match="chat template of tiny-0 has no tools"):
            llm.bind_tools([weather])
        with pytest.raises(NotImplementedError, match="has no tools"):
            llm.with_structured_output(Person)


def test_a_template_whose_calls_cannot_be_read_is_refused():
    template = "{{ tools }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[TOOL_CALLS]"
    llm = ChatRagBlend(engine=tiny_engine(chat_template=template))
    with llm, pytest.raises(NotImplementedError, match="JSON between <tool_call> marks"):
        llm.bind_tools([weather])


def test_what_cannot_be_promised_is_refused(llm):
    with pytest.raises(NotImplementedError, match="only be held to their schema in a forced call"):
        llm.bind_tools([weather], strict=True)
    with pytest.raises(ConfigError, match=r"tool_choice 'hammer' is none of the tools \(weather, clock\)"):
        llm.bind_tools([weather, clock], tool_choice="hammer")
