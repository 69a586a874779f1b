"""Tools, agents and structured answers: offered through the chat template, and required where asked for."""

import asyncio
from typing import Literal

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent, ReActAgent, ToolCallResult
from llama_index.core.base.llms.types import ChatMessage, ToolCallBlock
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool, QueryEngineTool, ToolMetadata
from pydantic import BaseModel
from watching import Watcher

from llama_index.llms.ragblend import RagBlend
from ragblend.errors import ConfigError


def weather(city: Literal["Kassel", "Ulm"], days: Literal[1, 2, 3]) -> str:
    """The weather in a city, for some days."""
    return f"In {city} it will rain for {days} days."


def clock() -> str:
    """What time it is."""
    return "12:00"


TOOLS = [FunctionTool.from_defaults(weather), FunctionTool.from_defaults(clock)]


class Lookup(BaseModel):
    """What the manual can be asked: a random model would go on asking for ever."""

    input: Literal["How high does the Heron cut?"]


class Person(BaseModel):
    """Somebody."""

    name: Literal["Ada", "Bo"]
    age: Literal[30, 40]


def test_a_required_call_is_a_valid_one(tool_llm):
    response = tool_llm.chat_with_tools(TOOLS, "Will it rain?", tool_required=True)
    [call] = tool_llm.get_tool_calls_from_response(response)
    assert call.tool_name in ("weather", "clock")
    assert call.tool_id
    assert "tool_call" not in (response.message.content or "")


def test_the_tool_that_is_named_is_the_one_called(tool_llm):
    response = tool_llm.chat_with_tools(TOOLS, "Will it rain?", tool_choice="weather")
    [call] = tool_llm.get_tool_calls_from_response(response)
    assert call.tool_name == "weather"
    assert weather(**call.tool_kwargs).startswith("In ")
    with pytest.raises(ConfigError, match="'oracle'"):
        tool_llm.chat_with_tools(TOOLS, "Will it rain?", tool_choice="oracle")


def test_a_call_comes_out_of_a_stream_whole_and_its_marks_are_never_shown(tool_llm):
    *_, before, last = tool_llm.stream_chat_with_tools(TOOLS, "Will it rain?", tool_required=True)
    assert [type(block) for block in last.message.blocks if isinstance(block, ToolCallBlock)] == [ToolCallBlock]
    assert "<tool" not in (before.message.content or "") + (last.message.content or "")
    [call] = tool_llm.get_tool_calls_from_response(last)
    assert call.tool_name in ("weather", "clock")


def test_predict_and_call_runs_the_tool(tool_llm):
    response = tool_llm.predict_and_call([TOOLS[0]], "Will it rain?", tool_required=True)
    assert response.response.startswith("In ")
    assert response.sources[0].tool_name == "weather"
    later = asyncio.run(tool_llm.apredict_and_call([TOOLS[0]], "Will it rain?", tool_required=True))
    assert later.response == response.response


def test_an_answer_without_a_call_is_an_answer(tool_llm):
    response = tool_llm.chat_with_tools(TOOLS, "Hello", max_tokens=8)
    assert tool_llm.get_tool_calls_from_response(response, error_on_no_tool_call=False) == []
    with pytest.raises(ValueError, match="called no tool"):
        tool_llm.get_tool_calls_from_response(response)


def test_a_model_without_tools_says_so(llm):
    with pytest.raises(ConfigError, match="tools"):
        llm.chat_with_tools(TOOLS, "Will it rain?")
    agent = FunctionAgent(tools=TOOLS, llm=llm)

    async def run() -> None:
        await agent.run("Will it rain?")

    with pytest.raises(ValueError, match="FunctionCallingLLM"):
        asyncio.run(run())


def test_a_function_agent_calls_and_then_answers(tool_llm):
    agent = FunctionAgent(tools=[TOOLS[0]], llm=tool_llm, initial_tool_choice="weather", system_prompt="Be brief.")

    async def run() -> tuple[str, list[ToolCallResult]]:
        handler = agent.run("Will it rain in Kassel?")
        results = [event async for event in handler.stream_events() if isinstance(event, ToolCallResult)]
        return str(await handler), results

    with Watcher() as watcher:
        answer, [result] = asyncio.run(run())
    assert answer
    assert "it will rain for" in result.tool_output.content
    first, second = watcher.answers
    assert second["usage"]["prompt_tokens"] > first["usage"]["prompt_tokens"] + len(result.tool_output.content)


def test_a_query_engine_tools_documents_are_reused_by_the_agent(tool_llm, documents, embed_model):
    """The tool's nodes are read by its query engine; its answer goes to the agent as the tool's result."""
    index = VectorStoreIndex.from_documents(documents, embed_model=embed_model)
    engine = index.as_query_engine(llm=tool_llm, similarity_top_k=3)
    tool = QueryEngineTool(engine, ToolMetadata("The manual.", name="manual", fn_schema=Lookup))

    async def run(question: str) -> None:
        agent = FunctionAgent(tools=[tool], llm=tool_llm, initial_tool_choice="manual")
        await agent.run(question)

    asyncio.run(run("How high does the Heron cut?"))
    assert tool_llm.library.wait(60)
    with Watcher() as watcher:
        asyncio.run(run("How high does the Heron cut?"))
    assert max(raw["hits"] for raw in watcher.answers) >= 3


def test_several_agents_hand_over(tool_llm):
    one = FunctionAgent(
        name="one",
        description="Starts.",
        tools=[TOOLS[1]],
        llm=tool_llm,
        can_handoff_to=["two"],
        initial_tool_choice="clock",
    )
    two = FunctionAgent(name="two", description="Ends.", tools=[TOOLS[0]], llm=tool_llm)
    flow = AgentWorkflow(agents=[one, two], root_agent="one")

    async def run() -> str:
        return str(await flow.run("What time is it?"))

    assert asyncio.run(run())


def test_a_react_agent_needs_no_tools_in_the_template(engine, tmp_path):
    grammar = 'start: "Thought: I can answer without using any more tools.\\nAnswer: " /[a-z]{3}/'
    with RagBlend(engine=engine, max_tokens=200, grammar=grammar) as llm:
        agent = ReActAgent(tools=TOOLS, llm=llm)

        async def run() -> str:
            return str(await agent.run("Will it rain?"))

        assert len(asyncio.run(run())) == 3


PROMPT = PromptTemplate("Invent a person from {town}.")


@pytest.mark.parametrize("name", ["llm", "tool_llm"])
def test_a_structured_answer_fits_its_schema(request, name):
    llm = request.getfixturevalue(name)
    llm.max_tokens = 200
    assert isinstance(llm.structured_predict(Person, PROMPT, town="Ulm"), Person)
    assert isinstance(asyncio.run(llm.astructured_predict(Person, PROMPT, town="Ulm")), Person)


def test_a_structured_llm_answers_a_chat(tool_llm):
    response = tool_llm.as_structured_llm(Person).chat([ChatMessage(content="Invent a person.")])
    assert isinstance(response.raw, Person)


def test_an_answer_cut_short_is_no_structured_answer(tool_llm):
    with pytest.raises((ValueError, TypeError)):
        tool_llm.structured_predict(Person, PROMPT, llm_kwargs={"max_tokens": 5}, town="Ulm")
