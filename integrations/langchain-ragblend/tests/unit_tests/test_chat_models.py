"""What a chat model says, streams, counts, refuses and frees; on a tiny random model."""

from __future__ import annotations

import asyncio
import gc

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.load import dumpd, load
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.runnables import ConfigurableField

import tiny
from langchain_ragblend import ChatRagBlend
from ragblend import Engine, Library, Message, ReuseSettings
from ragblend.errors import (
    CacheHandleError,
    ConfigError,
    ContextOverflowError,
    LibraryMismatchError,
    PathNotFoundError,
    RagblendError,
)
from ragblend.models.canvas import Canvas

from ..conftest import tiny_engine, tiny_model

# Paragraphs are learned from about a hundred characters on.
WARRANTY = "The warranty of the robot lasts two years from the day of purchase, and covers everything but the blades."
BATTERY = "The battery is charged in ninety minutes, holds for two hours of mowing and is replaced after six years."


@pytest.fixture
def llm(engine):
    with ChatRagBlend(engine=engine, max_tokens=16) as made:
        yield made


def stuffed(*texts: str) -> list[tuple[str, str]]:
    return [("system", "Answer briefly."), ("human", "\n\n".join([*texts, "Question: how long?"]))]


def test_a_stream_gives_the_text_of_invoke_and_usage_once(llm):
    llm.invoke("Hello")  # from the second time on, as much of the prompt is read from the cache
    whole = llm.invoke("Hello")
    chunks = list(llm.stream("Hello"))
    assert "".join(chunk.content for chunk in chunks) == whole.content != ""
    assert len(chunks) > 3
    *others, usage = [chunk.usage_metadata for chunk in chunks]
    assert others == [None] * len(others)
    for name in ("input_tokens", "output_tokens", "total_tokens"):
        assert usage[name] == whole.usage_metadata[name] > 0
    assert chunks[-1].chunk_position == "last"


async def test_async_calls_give_what_sync_ones_give(llm):
    whole = llm.invoke("Hello").content
    assert (await llm.ainvoke("Hello")).content == whole
    assert "".join([chunk.content async for chunk in llm.astream("Hello")]) == whole
    assert [answer.content for answer in await llm.abatch(["Hello", "Hello"])] == [whole, whole]


def test_a_batch_answers_each_as_if_alone(llm):
    questions = ["Hello", "Hey", "What?", "Why?"]
    assert [a.content for a in llm.batch(questions)] == [llm.invoke(question).content for question in questions]


def test_tokens_reach_callbacks(llm):
    class Collector(BaseCallbackHandler):
        def __init__(self):
            self.tokens = []

        def on_llm_new_token(self, token, **kwargs):
            self.tokens.append(token)

    collector = Collector()
    text = "".join(chunk.content for chunk in llm.stream("Hello", config={"callbacks": [collector]}))
    assert "".join(collector.tokens) == text
    streaming = ChatRagBlend(library=llm.library, max_tokens=16, streaming=True)
    collector = Collector()
    assert streaming.invoke("Hello", config={"callbacks": [collector]}).content == "".join(collector.tokens) == text


def test_settings_hold_for_the_model_or_for_one_call(llm):
    assert llm.invoke("Hello", max_tokens=3).usage_metadata["output_tokens"] == 3
    assert llm.bind(max_tokens=4).invoke("Hello").usage_metadata["output_tokens"] == 4
    sampled = [llm.invoke("Hello", temperature=1.5, top_k=50, top_p=0.9, seed=seed).content for seed in (1, 1, 2)]
    assert sampled[0] == sampled[1] != sampled[2]
    whole = llm.invoke("Hello").content
    assert llm.invoke("Hello", repetition_penalty=1.8).content != whole
    stopped = llm.invoke("Hello", stop=[whole[2]])
    assert stopped.content == whole[: whole.index(whole[2])].strip()
    assert stopped.response_metadata["finish_reason"] == "stop"
    assert ChatRagBlend(library=llm.library, stop=[whole[2]]).invoke("Hello").content == stopped.content
    assert llm.invoke("Hello", policy="full").response_metadata["policy"] == "full"


def test_documents_are_learned_and_reused_in_any_order_with_any_neighbours(llm):
    first = llm.invoke(stuffed(WARRANTY, BATTERY))
    assert first.response_metadata["hits"] == 0
    assert llm.library.wait(30)
    for texts in ((WARRANTY, BATTERY), (BATTERY, WARRANTY), (BATTERY,)):
        answer = llm.invoke(stuffed(*texts))
        assert answer.response_metadata["hits"] == len(texts)
        assert answer.response_metadata["matched_tokens"] == sum(map(llm.get_num_tokens, texts))


def test_usage_counts_reused_tokens_as_read_from_the_cache(llm):
    llm.library.precompute([WARRANTY, BATTERY])
    answer = llm.invoke(stuffed(WARRANTY, BATTERY), ratio=0.2)
    usage, told = answer.usage_metadata, answer.response_metadata
    assert usage["input_token_details"]["cache_read"] >= told["matched_tokens"] - told["recomputed_tokens"] > 0
    assert usage["input_tokens"] >= sum(usage["input_token_details"].values())
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert told["ratio"] == 0.2
    assert told["recomputed_tokens"] > 0
    assert 0 < told["timings"]["ttft_s"] <= told["timings"]["total_s"]
    assert told["model_name"] == "tiny-0"


async def test_a_cancelled_task_frees_the_canvas_and_the_next_request_works(llm):
    gc.collect()
    before = canvases()

    async def read():
        async for _ in llm.astream("Hello", max_tokens=2000):
            started.set()

    for _ in range(5):
        started = asyncio.Event()
        task = asyncio.create_task(read())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    async for _ in llm.astream("Hello", max_tokens=2000):
        break
    await asyncio.sleep(0.05)
    gc.collect()
    assert canvases() == before
    assert (await llm.ainvoke("Hello")).content


def canvases() -> int:
    return sum(issubclass(type(each), Canvas) for each in gc.get_objects())


async def test_a_cancelled_ainvoke_stops_computing(llm):
    gc.collect()
    before = canvases()
    task = asyncio.create_task(llm.ainvoke("Hello", max_tokens=3500))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gc.collect()
    assert canvases() == before
    assert llm.invoke("Hello").content


def test_a_stream_left_early_is_freed(llm):
    gc.collect()
    before = canvases()
    stream = llm.stream("Hello", max_tokens=2000)
    next(stream)
    stream.close()
    del stream
    gc.collect()
    assert canvases() == before


def test_a_timeout_ends_an_answer(llm):
    with pytest.raises(TimeoutError, match=r"within 0.01 s"):
        llm.invoke("Hello", max_tokens=3500, timeout=0.01)
    assert llm.invoke("Hello", timeout=60).content


def test_a_profile_says_what_the_model_takes(llm, engine_with_tools):
    assert llm.profile["max_input_tokens"] == 4096
    assert (llm.profile["tool_calling"], llm.profile["image_inputs"]) == (False, False)
    with ChatRagBlend(engine=engine_with_tools) as able:
        assert able.profile["tool_calling"]


def test_a_copy_by_configuration_shares_engine_and_library(llm):
    configurable = llm.configurable_fields(max_tokens=ConfigurableField(id="n"))
    answer = configurable.with_config(configurable={"n": 2}).invoke("Hello")
    assert answer.usage_metadata["output_tokens"] == 2
    assert llm.invoke("Hello").content


def test_serialised_it_names_model_and_library_but_holds_neither(engine, tmp_path):
    with ChatRagBlend(engine=engine, library=tmp_path / "kv.rag", seed=3) as llm:
        kwargs = dumpd(llm)["kwargs"]
    assert kwargs["library"] == str(tmp_path / "kv.rag")
    assert kwargs["model"] == "tiny-0"
    assert kwargs["seed"] == 3
    assert not {"engine", "api_key"} & set(kwargs)
    assert llm.lc_secrets == {}


def test_what_was_serialised_is_loaded_by_name(tmp_path):
    tiny_model().save_pretrained(tmp_path / "model")
    tiny.tokenizer().save_pretrained(tmp_path / "model")
    with ChatRagBlend(model=str(tmp_path / "model"), library=tmp_path / "kv.rag", stop=["x"]) as llm:
        copy = load(dumpd(llm), valid_namespaces=["langchain_ragblend"], allowed_objects=[ChatRagBlend])
        assert copy.asdict() == llm.asdict()
        assert copy.invoke("Hello", max_tokens=4).content == llm.invoke("Hello", max_tokens=4).content
        copy.close()


def test_an_open_library_brings_its_engine_and_stays_open(library):
    with ChatRagBlend(library=library, max_tokens=4) as llm:
        assert llm.engine is library.engine
        llm.invoke("Hello")
    library.precompute([WARRANTY])
    assert ChatRagBlend(library=library).invoke(stuffed(WARRANTY)).response_metadata["hits"] == 1


def test_two_models_on_one_folder_share_what_they_know(engine, tmp_path):
    with ChatRagBlend(engine=engine, library=tmp_path / "kv.rag", max_tokens=4) as first:
        first.invoke(stuffed(WARRANTY))
        assert first.library.wait(30)
        with ChatRagBlend(engine=engine, library=tmp_path / "kv.rag", max_tokens=4) as second:
            assert second.invoke(stuffed(WARRANTY)).response_metadata["hits"] == 1


def test_two_engines_on_one_library_are_refused(engine, library):
    library.precompute([WARRANTY])
    with pytest.raises(LibraryMismatchError, match="tiny-0"):
        ChatRagBlend(engine=tiny_engine(seed=1), library=library.folder)
    with pytest.raises(ValueError, match="another engine"):
        ChatRagBlend(engine=tiny_engine(seed=1), library=library)


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        ({"temprature": 1}, "temprature"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"ratio": 2}, "ratio must be auto or between 0 and 1"),
        ({"policy": "magic"}, "unknown policy 'magic'"),
        ({"learn": "everything"}, "learn"),
        ({"model": "another"}, "the engine is tiny-0, not another"),
        ({"library": 3}, "library"),
    ],
)
def test_bad_arguments_are_found_when_the_model_is_made(engine, arguments, cause):
    with pytest.raises(ValueError, match=cause):
        ChatRagBlend(engine=engine, **arguments)


def test_a_library_must_come_with_a_model_and_learns_as_it_was_opened(tmp_path, engine):
    with Library.open(tmp_path / "x.rag") as library, pytest.raises(ValueError, match="opened without a model"):
        ChatRagBlend(library=library)
    with Library.open(tmp_path / "y.rag", engine=engine, reuse=ReuseSettings(learn="off")) as library:
        with pytest.raises(ValueError, match="opened to learn 'off'"):
            ChatRagBlend(library=library, learn="passages")
        assert ChatRagBlend(library=library).learn == "off"


def test_a_model_that_is_not_there_is_named(tmp_path):
    with pytest.raises(PathNotFoundError, match="no-such-model"):
        ChatRagBlend(model=str(tmp_path / "no-such-model"))


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        ({"temprature": 1}, "unknown arguments: temprature"),
        ({"max_tokens": -1}, "max_tokens must be at least 1"),
        ({"policy": "magic"}, "unknown policy 'magic'"),
        ({"model": "other"}, "unknown arguments: model"),
        ({"documents": "one text"}, "must be a list of documents, not str"),
        ({"documents": [WARRANTY, 3]}, r"documents\[1\] is a int"),
        ({"documents": [Document(WARRANTY), Document(" \n")]}, r"documents\[1\] has no text"),
    ],
)
def test_bad_arguments_of_a_call_are_refused(llm, arguments, cause):
    with pytest.raises(ConfigError, match=cause):
        llm.invoke("Hello", **arguments)


def test_content_that_is_no_text_is_refused(llm):
    image = {"type": "image", "url": "https://example.org/a.png"}
    with pytest.raises(ConfigError, match="content of type 'image' cannot be read"):
        llm.invoke([HumanMessage([{"type": "text", "text": "What is this?"}, image])])


def test_documents_need_a_question(llm):
    with pytest.raises(ConfigError, match="no user message"):
        llm.invoke([SystemMessage("Be brief."), AIMessage("Hello.")], documents=[WARRANTY])


def test_more_documents_than_fit_are_refused_with_the_counts_or_dropped(llm):
    many = [Document(f"{number}. {WARRANTY}", metadata={"source": f"{number}.md"}) for number in range(200)]
    with pytest.raises(ContextOverflowError, match="4,096"):
        llm.invoke("How long?", documents=many)
    answer = llm.invoke("How long?", documents=many, overflow="drop")
    told = answer.response_metadata
    assert len(told["sources"]) + len(told["dropped"]) == 200
    assert len(told["sources"]) > 10
    assert answer.usage_metadata["input_tokens"] <= 4096 - 16
    for number, document in enumerate(many):
        document.metadata["relevance_score"] = number / 200  # the best one last
    told = llm.invoke("How long?", documents=many, overflow="drop").response_metadata
    assert told["dropped"] == [f"{number}.md" for number in range(len(told["dropped"]))]
    assert told["sources"][0]["document"] == "199.md"


def test_a_closed_model_says_so(engine):
    llm = ChatRagBlend(engine=engine)
    llm.close()
    with pytest.raises(RagblendError, match="closed"):
        llm.invoke("Hello")


def test_a_temporary_library_goes_with_the_model(engine: Engine):
    llm = ChatRagBlend(engine=engine)
    folder = llm.library.folder
    assert folder.is_dir()
    llm.close()
    assert not folder.exists()


class TestCacheControl:
    LONG = "You are the clerk of a garden shop. " * 8

    @pytest.mark.parametrize(
        "system",
        [
            SystemMessage([{"type": "text", "text": LONG, "cache_control": {"type": "ephemeral", "ttl": "1h"}}]),
            SystemMessage(LONG, additional_kwargs={"cache_control": {"type": "ephemeral", "ttl": "1h"}}),
        ],
        ids=["on a block", "on a message"],
    )
    def test_is_a_cache_point(self, llm, system):
        first, second = (llm.invoke([system, HumanMessage(question)]).usage_metadata for question in ("Who?", "What?"))
        created, read = (usage["input_token_details"] for usage in (first, second))
        assert created["cache_creation"] > 200
        assert read["cache_read"] > 200
        head = min(llm.library.prefixes.prefixes(), key=lambda prefix: prefix.tokens)
        assert head.ttl_s == 3600

    def test_one_behind_too_little_is_not_kept_and_the_answer_says_so(self, llm):
        block = {"type": "text", "text": "Hello.", "cache_control": {"type": "ephemeral"}}
        [point] = llm.invoke([HumanMessage([block])]).response_metadata["cache_points"]
        assert not point["kept"]
        assert "fewer than the minimum" in point["reason"]

    def test_a_bad_one_is_refused(self, llm):
        block = {"type": "text", "text": "Hello", "cache_control": {"type": "ephemeral", "ttl": "2h"}}
        with pytest.raises(ConfigError, match="ttl must be one of 5m, 1h"):
            llm.invoke([HumanMessage([block])])

    def test_five_are_refused(self, llm):
        block = {"type": "text", "text": "Hello. ", "cache_control": {"type": "ephemeral"}}
        with pytest.raises(ConfigError, match="at most 4 cache points"):
            llm.invoke([HumanMessage([block] * 5)])


class TestCachedContent:
    LONG = "You are the clerk of a garden shop. " * 8

    @pytest.mark.parametrize("call", [True, False], ids=["of a call", "of the model"])
    def test_goes_before_the_messages(self, llm, call):
        llm.engine.caches.create([Message("system", (self.LONG,))], name="clerk")
        if not call:
            llm.cached_content = "clerk"
        documents = [Document("The red mower costs ninety francs and is sold in May.")]
        answer = llm.invoke("Who?", documents=documents, **({"cached_content": "clerk"} if call else {}))
        assert answer.usage_metadata["input_token_details"]["cache_read"] > 200
        assert [point["kept"] for point in answer.response_metadata["cache_points"]] == [True]
        assert answer.response_metadata["prefix_tokens"] > 200

    def test_that_is_not_there_is_refused(self, llm):
        with pytest.raises(CacheHandleError, match="no cache 'unknown'"):
            llm.invoke("Who?", cached_content="unknown")
