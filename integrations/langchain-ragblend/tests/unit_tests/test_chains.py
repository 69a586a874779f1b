"""Chains and agents as LangChain's users write them, with nothing changed but the model."""

from __future__ import annotations

import random
from typing import Literal

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import wrap_model_call
from langchain_classic.chains import create_retrieval_chain
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import RunnablePassthrough
from langchain_core.tools import tool
from langchain_core.vectorstores import InMemoryVectorStore

from langchain_ragblend import ChatRagBlend, PrecomputeKV

TEXTS = [
    f"Rule {n} of the garden: a robot of the colour number {n} is washed every {n + 2} weeks, "
    f"and its blades are changed after {n + 5} months, by the owner."
    for n in range(6)
]
DOCUMENTS = [Document(text, metadata={"source": f"{n}.md"}) for n, text in enumerate(TEXTS)]
PROMPT = ChatPromptTemplate.from_messages(
    [("system", "Answer briefly."), ("human", "Documents:\n\n{context}\n\nAnswer this question.\nQuestion: {input}")]
)


def whole(message):
    return message


@pytest.fixture
def llm(engine):
    with ChatRagBlend(engine=engine, max_tokens=8) as made:
        yield made


@pytest.fixture
def retriever():
    store = InMemoryVectorStore.from_documents(DOCUMENTS, DeterministicFakeEmbedding(size=8))
    return store.as_retriever(search_kwargs={"k": 4})


def reused(llm, message) -> float:
    """Share of the context's tokens that stood in known chunks."""
    return message.response_metadata["matched_tokens"] / sum(llm.get_num_tokens(text) for text in TEXTS)


def test_a_stuff_chain_reuses_from_its_second_question_on_whatever_the_order(llm):
    chain = create_stuff_documents_chain(llm, PROMPT, output_parser=whole)
    first = chain.invoke({"context": DOCUMENTS, "input": "How often?"})
    assert first.response_metadata["hits"] == 0
    assert llm.library.wait(30)
    for seed in range(3):
        shuffled = random.Random(seed).sample(DOCUMENTS, len(DOCUMENTS))
        message = chain.invoke({"context": shuffled, "input": f"Who, in the year {seed}?"})
        assert reused(llm, message) >= 0.8


def test_precomputed_documents_are_reused_from_the_first_question_on(llm):
    PrecomputeKV(llm).transform_documents(DOCUMENTS)
    chain = create_stuff_documents_chain(llm, PROMPT, output_parser=whole)
    message = chain.invoke({"context": DOCUMENTS[::-1], "input": "How often?"})
    assert message.response_metadata["hits"] == len(DOCUMENTS)
    assert reused(llm, message) == 1


def test_with_everything_recomputed_answers_are_those_of_full_prefill(llm):
    PrecomputeKV(llm).transform_documents(DOCUMENTS)
    answers = [
        create_stuff_documents_chain(llm.bind(**settings), PROMPT).invoke({"context": DOCUMENTS, "input": "How often?"})
        for settings in ({"policy": "query", "ratio": 1.0}, {"policy": "full"})
    ]
    assert answers[0] == answers[1] != ""


def test_a_retrieval_chain_streams_its_context_then_its_answer(llm, retriever):
    PrecomputeKV(llm).transform_documents(DOCUMENTS)
    chain = create_retrieval_chain(retriever, create_stuff_documents_chain(llm, PROMPT))
    pieces = list(chain.stream({"input": "How often?"}))
    assert len(next(piece["context"] for piece in pieces if "context" in piece)) == 4
    answer = "".join(piece["answer"] for piece in pieces if "answer" in piece)
    assert answer == chain.invoke({"input": "How often?"})["answer"] != ""


async def test_an_lcel_chain_async(llm, retriever):
    def join(documents):
        return "\n\n".join(document.page_content for document in documents)

    PrecomputeKV(llm).transform_documents(DOCUMENTS)
    chain = {"context": retriever | join, "input": RunnablePassthrough()} | PROMPT | llm | StrOutputParser()
    streamed = "".join([piece async for piece in chain.astream("How often?")])
    assert streamed == await chain.ainvoke("How often?") == chain.invoke("How often?")


def test_a_conversation_reuses_what_stands_in_its_history(llm):
    prompt = ChatPromptTemplate.from_messages(
        [("system", "Answer from documents."), MessagesPlaceholder("history"), ("human", "{input}")]
    )
    PrecomputeKV(llm).transform_documents(DOCUMENTS)
    history = []
    for turn, text in enumerate(TEXTS[:3]):
        asked = f"{text}\n\nAnd {turn}?"
        message = (prompt | llm).invoke({"history": history, "input": asked})
        history += [HumanMessage(asked), message]
        assert message.response_metadata["hits"] == turn + 1


def test_an_agents_retriever_tool_brings_documents_whose_kv_is_there(engine_with_tools, retriever):
    with ChatRagBlend(engine=engine_with_tools, max_tokens=400) as llm:
        PrecomputeKV(llm).transform_documents(DOCUMENTS)

        @tool(response_format="content_and_artifact")
        def search(query: Literal["robots", "blades"]) -> tuple[str, list[Document]]:
            """Search the rules."""
            found = retriever.invoke(query)
            return "\n\n".join(document.page_content for document in found), found

        @wrap_model_call
        def search_first(request, handler):
            searched = isinstance(request.messages[-1], ToolMessage)
            settings = {"max_tokens": 4} if searched else {"temperature": 1.0, "seed": 3}
            choice = "none" if searched else "any"
            return handler(request.override(tool_choice=choice, model_settings=settings))

        agent = create_agent(llm, [search], middleware=[search_first])
        _, call, result, answer = agent.invoke({"messages": [("user", "How often?")]})["messages"]
    assert call.tool_calls[0]["name"] == "search"
    assert len(result.artifact) == 4
    assert (answer.response_metadata["hits"], answer.response_metadata["misses"]) == (4, 0)
