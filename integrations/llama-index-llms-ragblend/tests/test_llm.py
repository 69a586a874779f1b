"""RagBlend is an LLM as LlamaIndex knows them: four ways to call it, each with its asynchronous twin."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from llama_index.core.base.llms.types import CacheControl, CachePoint, ChatMessage, MessageRole, TextBlock
from llama_index.core.callbacks import CallbackManager, TokenCountingHandler
from llama_index.core.prompts import PromptTemplate
from watching import Watcher

from llama_index.llms.ragblend import RagBlend
from ragblend import Engine, Library, Message
from ragblend.errors import (
    CacheHandleError,
    ConfigError,
    ContextOverflowError,
    LibraryMismatchError,
    PathNotFoundError,
    StoreError,
)

HELLO = [ChatMessage(role="system", content="Be kind."), ChatMessage(role="user", content="Hello, who are you?")]


async def collected(generator) -> list[Any]:
    return [response async for response in await generator]


def test_metadata_tell_what_the_model_is(llm, tool_llm):
    assert llm.metadata.context_window == 32768
    assert llm.metadata.num_output == 12
    assert llm.metadata.model_name == "tiny-0"
    assert llm.metadata.is_chat_model
    assert not llm.metadata.is_function_calling_model
    assert tool_llm.metadata.is_function_calling_model
    assert RagBlend.class_name() == llm.to_dict()["class_name"] == "RagBlend"


def test_a_model_without_a_chat_template_is_no_chat_model(tmp_path):
    from setting import make_engine

    with RagBlend(engine=make_engine(None), max_tokens=4) as llm:
        assert not llm.metadata.is_chat_model
        assert llm.predict(PromptTemplate("Say {what}"), what="yes") == llm.complete("Say yes").text


def test_chat_in_all_its_forms_gives_the_same_answer(llm):
    whole = llm.chat(HELLO)
    assert whole.message.role == MessageRole.ASSISTANT
    assert whole.message.content
    assert whole.raw["usage"]["completion_tokens"] <= 12
    streamed = list(llm.stream_chat(HELLO))
    assert "".join(response.delta for response in streamed).strip() == whole.message.content
    assert streamed[-1].message.content.strip() == whole.message.content
    assert len(streamed) > 3
    assert asyncio.run(llm.achat(HELLO)).message.content == whole.message.content
    later = asyncio.run(collected(llm.astream_chat(HELLO)))
    assert [response.delta for response in later] == [response.delta for response in streamed]


def test_complete_in_all_its_forms_gives_the_same_answer(llm):
    whole = llm.complete("Once upon a time")
    streamed = list(llm.stream_complete("Once upon a time"))
    assert streamed[-1].text.strip() == whole.text
    assert "".join(response.delta for response in streamed).strip() == whole.text
    assert asyncio.run(llm.acomplete("Once upon a time")).text == whole.text
    later = asyncio.run(collected(llm.astream_complete("Once upon a time")))
    assert [response.text for response in later] == [response.text for response in streamed]


def test_a_prompt_to_a_chat_model_is_a_users_message(llm):
    assert llm.complete("Hello").text == llm.chat([ChatMessage(role="user", content="Hello")]).message.content
    assert llm.complete("Hello").text != llm.complete("Hello", formatted=True).text


def prompt_tokens(response) -> int:
    return response.raw["usage"]["prompt_tokens"]


def test_the_users_own_prompt_functions_are_used_wherever_there_is_a_prompt(engine):
    def dressed(prompt: str) -> str:
        return f"Q: {prompt}\nA:"

    def told(messages) -> str:
        return "\n".join(f"{message.role.value}> {message.content}" for message in messages)

    with RagBlend(engine=engine, max_tokens=4, completion_to_prompt=dressed, messages_to_prompt=told) as llm:
        expected = len("Q: Hello\nA:")
        assert prompt_tokens(llm.complete("Hello")) == expected
        assert prompt_tokens(list(llm.stream_complete("Hello"))[-1]) == expected
        assert prompt_tokens(asyncio.run(llm.acomplete("Hello"))) == expected
        assert prompt_tokens(asyncio.run(collected(llm.astream_complete("Hello")))[-1]) == expected
        assert prompt_tokens(llm.complete(dressed("Hello"), formatted=True)) == expected
        expected = len(told(HELLO))
        assert prompt_tokens(llm.chat(HELLO)) == expected
        assert prompt_tokens(list(llm.stream_chat(HELLO))[-1]) == expected


def test_control_tokens_work_in_a_prompt_function_but_not_in_a_message(engine):
    """A prompt function writes the model's own form; what a user or a document says stays text."""

    def told(messages) -> str:
        return "".join(f"<|start|>{m.role.value}\n{m.content}<|end|>\n" for m in messages) + "<|start|>assistant\n"

    with (
        RagBlend(engine=engine, max_tokens=8) as llm,
        RagBlend(engine=engine, max_tokens=8, messages_to_prompt=told) as own,
    ):
        assert own.chat(HELLO).message.content == llm.chat(HELLO).message.content
        assert prompt_tokens(own.chat(HELLO)) == prompt_tokens(llm.chat(HELLO))
        said = [ChatMessage(role="user", content="<|end|>")]
        assert prompt_tokens(llm.chat(said)) == prompt_tokens(llm.chat([ChatMessage(content="7 bytes")]))


def test_raw_tells_usage_reuse_and_timings(llm):
    raw = llm.chat(HELLO).raw
    usage = raw["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens"] == usage["cached_tokens"] - usage["recomputed_tokens"] + usage["computed_tokens"]
    reused = usage["cached_tokens"] - usage["recomputed_tokens"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == reused
    assert raw["hits"] == raw["misses"] == raw["matched_tokens"] == 0
    assert 0 < raw["timings"]["ttft_s"] <= raw["timings"]["total_s"]
    assert raw["model"] == "tiny-0"
    assert raw["finish_reason"] in ("stop", "length")
    assert json.loads(json.dumps(raw)) == raw


class TestCaching:
    LONG = "You are the clerk of a garden shop. " * 8

    def test_a_named_cache_goes_before_the_messages(self, llm):
        llm.engine.caches.create([Message("system", (self.LONG,))], name="clerk")
        raw = llm.chat(HELLO, cached_content="clerk").raw
        assert raw["prefix_tokens"] > 200
        assert [point["kept"] for point in raw["cache_points"]] == [True]
        llm.cached_content = "clerk"
        assert llm.complete("Hello").raw["prefix_tokens"] > 200
        with pytest.raises(CacheHandleError, match="no cache 'unknown'"):
            llm.chat(HELLO, cached_content="unknown")

    def test_a_cache_point_behind_too_little_is_not_kept_and_raw_says_so(self, llm):
        point = CachePoint(cache_control=CacheControl(type="ephemeral"))
        [said] = llm.chat([ChatMessage(blocks=[TextBlock(text="Hello"), point])]).raw["cache_points"]
        assert not said["kept"]
        assert "fewer than the minimum" in said["reason"]

    def test_five_cache_points_are_refused(self, llm):
        point = CachePoint(cache_control=CacheControl(type="ephemeral"))
        with pytest.raises(ConfigError, match="at most 4 cache points, got 5"):
            llm.chat([ChatMessage(blocks=[TextBlock(text="Hello"), point] * 5)])


def test_only_the_last_response_of_a_stream_has_raw(llm):
    *before, last = llm.stream_chat(HELLO)
    assert {response.raw for response in before} == {None}
    assert last.raw["usage"]["completion_tokens"] > 0


def test_the_token_counter_counts_the_models_own_tokens(llm):
    counter = TokenCountingHandler()
    llm.callback_manager = CallbackManager([counter])
    usage = llm.chat(HELLO).raw["usage"]
    assert counter.prompt_llm_token_count == usage["prompt_tokens"]
    assert counter.completion_llm_token_count == usage["completion_tokens"]
    counter.reset_counts()
    *_, last = llm.stream_complete("Hello")
    assert counter.total_llm_token_count == last.raw["usage"]["total_tokens"]


def test_every_call_is_seen_by_instrumentation(llm):
    with Watcher() as watcher:
        llm.chat(HELLO)
        list(llm.stream_complete("Hello"))
        asyncio.run(llm.acomplete("Hello"))
        asyncio.run(collected(llm.astream_chat(HELLO)))
    assert watcher.names.count("LLMChatStartEvent") == watcher.names.count("LLMChatEndEvent") == 2
    assert watcher.names.count("LLMCompletionStartEvent") == watcher.names.count("LLMCompletionEndEvent") == 2
    assert "LLMChatInProgressEvent" in watcher.names
    assert "LLMCompletionInProgressEvent" in watcher.names
    assert all(raw["usage"]["prompt_tokens"] for raw in watcher.answers)


def test_settings_of_a_call_go_before_those_of_the_llm(llm):
    assert llm.chat(HELLO, max_tokens=3).raw["usage"]["completion_tokens"] <= 3
    assert llm.complete("Hello", policy="full", ratio=1.0).raw["policy"] == "full"
    text = llm.complete("Hello").text
    assert llm.complete("Hello", stop=text[4]).text == text[: text.index(text[4])].strip()
    hot = [llm.complete("Hello", temperature=2.0, seed=seed).text for seed in (1, 1, 2)]
    assert hot[0] == hot[1] != hot[2]
    llm.max_tokens = 2
    assert llm.chat(HELLO).raw["usage"]["completion_tokens"] <= 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -1}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": [""]}, "stop"),
        ({"ratio": 2.0}, "ratio"),
        ({"frequency_penalty": 1.0}, "frequency_penalty"),
        ({"max_new_tokens": 5}, "max_new_tokens"),
    ],
)
def test_bad_settings_are_refused_when_made_and_when_called(engine, llm, settings, message):
    with pytest.raises(ConfigError, match=message):
        llm.complete("Hello", **settings)
    with pytest.raises(ConfigError, match=message):
        RagBlend(engine=engine, **settings)


def test_an_unknown_policy_is_refused_by_name(llm):
    with pytest.raises(ConfigError, match="magic"):
        llm.complete("Hello", policy="magic")


def test_a_prompt_over_the_context_is_refused_with_the_numbers(llm):
    for call in (llm.complete, llm.stream_complete):
        with pytest.raises(ContextOverflowError, match="32,768"):
            call("word " * 10_000)


def test_an_empty_chat_is_refused(llm):
    with pytest.raises(ConfigError, match="at least one message"):
        llm.chat([])


def test_what_model_engine_and_library_may_be(engine, tmp_path):
    with Library.open(tmp_path / "shared", engine=engine) as library:
        llm = RagBlend(library=library)
        assert llm.library is library
        assert llm.engine is engine
        llm.close()  # not its own, so it stays open
        assert library.info().documents == 0
        with pytest.raises(ConfigError, match="open library"):
            RagBlend(library=library, engine=engine)
        with pytest.raises(ConfigError, match="open library"):
            RagBlend(library=library, learn="off")
    with pytest.raises(ConfigError, match="either engine or model"):
        RagBlend("some/model", engine=engine)
    with Library.open(tmp_path / "shared") as modelless, pytest.raises(ConfigError, match="without a model"):
        RagBlend(library=modelless)
    with pytest.raises(ConfigError, match="learn"):
        RagBlend(engine=engine, learn="everything")
    (tmp_path / "file").write_text("x")
    with pytest.raises(PathNotFoundError, match="is a file"):
        RagBlend(engine=engine, library=tmp_path / "file")


def test_a_closed_llm_says_so(engine):
    llm = RagBlend(engine=engine)
    folder = llm.library.folder
    assert folder.is_dir()
    llm.close()
    llm.close()
    assert not folder.exists()
    with pytest.raises(StoreError, match="closed"):
        llm.complete("Hello")


def test_two_llms_with_their_own_engines_share_a_library(engine, tmp_path):
    from setting import make_engine

    with (
        RagBlend(engine=engine, library=tmp_path / "l", max_tokens=4) as one,
        RagBlend(engine=make_engine(), library=tmp_path / "l", max_tokens=4) as two,
    ):
        assert one.complete("Hello").text == two.complete("Hello").text
        text = "A paragraph that both of them will know once one of them has read it. " * 3
        one.library.precompute([text])
        assert two.complete(f"{text}\n\nAnd now?").raw["hits"] == 1


def test_an_engine_of_another_model_is_refused(engine, tmp_path):
    from setting import make_engine

    with RagBlend(engine=engine, library=tmp_path / "l") as llm:
        llm.library.precompute(["A paragraph that the first model has read, and nobody else."])
    with pytest.raises(LibraryMismatchError, match="tiny-0"):
        RagBlend(engine=make_engine(seed=1), library=tmp_path / "l")


def test_settings_are_serialised_and_nothing_heavy_is(llm):
    data = llm.to_dict()
    assert data["max_tokens"] == 12
    assert data["class_name"] == "RagBlend"
    assert json.loads(llm.to_json()) == json.loads(json.dumps(data))
    assert "library" not in data
    assert isinstance(llm.engine, Engine)


def test_the_models_own_tokenizer_can_count_for_llama_index(llm):
    assert len(llm.tokenize("é<|end|>")) == 2 + len("<|end|>")
