"""The completion model: plain text in, plain text out."""

from __future__ import annotations

import asyncio

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.prompts import PromptTemplate

from langchain_ragblend import ChatRagBlend, RagBlendLLM
from ragblend.errors import ConfigError

WARRANTY = "The warranty of the robot lasts two years from the day of purchase."


@pytest.fixture
def llm(engine):
    with RagBlendLLM(engine=engine, max_tokens=12) as made:
        yield made


def test_invoke_stream_and_their_async_forms_agree(llm):
    whole = llm.invoke("Once upon a time")
    assert len(whole) > 3
    assert "".join(llm.stream("Once upon a time")) == whole

    async def both():
        streamed = "".join([piece async for piece in llm.astream("Once upon a time")])
        return streamed, await llm.ainvoke("Once upon a time")

    assert asyncio.run(both()) == (whole, whole)


def test_no_chat_template_is_applied(llm):
    usage = llm.generate(["Once"]).generations[0][0].generation_info["usage"]
    assert usage["input_tokens"] <= len("Once") + 1


def test_a_batch_has_usage_for_each_and_together(llm):
    result = llm.generate(["Once", "Twice"])
    totals = [generations[0].generation_info["usage"]["total_tokens"] for generations in result.generations]
    assert result.llm_output["token_usage"]["total_tokens"] == sum(totals)
    assert llm.batch(["Once", "Twice"]) == [llm.invoke("Once"), llm.invoke("Twice")]


def test_known_text_is_reused(llm):
    llm.library.precompute([WARRANTY])
    chain = PromptTemplate.from_template("{context}\n\nQuestion: {question}\nAnswer:") | llm.bind(stop=["\n"])
    assert isinstance(chain.invoke({"context": WARRANTY, "question": "How long?"}), str)
    info = llm.generate([f"{WARRANTY}\nAnswer:"]).generations[0][0].generation_info
    assert info["hits"] == 1
    assert info["usage"]["input_token_details"]["cache_read"] >= info["matched_tokens"] - info["recomputed_tokens"] > 0


def test_tokens_reach_callbacks(llm):
    class Collector(BaseCallbackHandler):
        def __init__(self):
            self.tokens = []

        def on_llm_new_token(self, token, **kwargs):
            self.tokens.append(token)

    collector = Collector()
    assert "".join(llm.stream("Once", config={"callbacks": [collector]})) == "".join(collector.tokens)


def test_both_models_share_a_library(llm):
    chat = ChatRagBlend(library=llm.library, max_tokens=4)
    llm.library.precompute([WARRANTY])
    assert chat.invoke(f"{WARRANTY}\n\nHow long?").response_metadata["hits"] == 1


def test_bad_arguments_are_refused(llm):
    with pytest.raises(ConfigError, match="unknown arguments: temprature"):
        llm.invoke("Once", temprature=1)
    with pytest.raises(ConfigError, match="the prompt is empty"):
        llm.invoke("")
