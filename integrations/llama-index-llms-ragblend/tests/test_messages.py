"""LlamaIndex's messages reach the model as text, passages and template arguments; what is no text is refused."""

from __future__ import annotations

import pytest
from llama_index.core.base.llms.types import (
    CacheControl,
    CachePoint,
    ChatMessage,
    CitableBlock,
    DocumentBlock,
    ImageBlock,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)

from llama_index.llms.ragblend.messages import to_messages
from ragblend import CachePoint as Kept
from ragblend import Message, Passage
from ragblend.errors import ConfigError


def one(*blocks, role="user", **kwargs) -> Message:
    [message] = to_messages([ChatMessage(role=role, blocks=list(blocks), additional_kwargs=kwargs)])
    return message


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("system", "system"),
        ("developer", "system"),
        ("user", "user"),
        ("assistant", "assistant"),
        ("chatbot", "assistant"),
        ("model", "assistant"),
        ("tool", "tool"),
        ("function", "tool"),
    ],
)
def test_every_role_has_its_counterpart(role, expected):
    assert one(TextBlock(text="x"), role=role).role == expected


def test_the_roles_above_are_all_there_are():
    assert len(MessageRole) == 8


def test_text_blocks_are_joined_as_in_content():
    message = ChatMessage(role="user", blocks=[TextBlock(text="a"), TextBlock(text="b")])
    assert to_messages([message])[0].content == (message.content,) == ("a\nb",)


def test_documents_are_passages_between_the_text():
    content = one(
        TextBlock(text="Read."),
        DocumentBlock(data=b"The \xc3\xbcber text", title="Manual", document_mimetype="text/plain", path="m.txt"),
        CitableBlock(title="", source="node-1", content=[TextBlock(text="cited"), TextBlock(text="twice")]),
        TextBlock(text="Answer."),
    ).content
    assert content == (
        "Read.",
        Passage("The über text", title="Manual", document="m.txt"),
        Passage("cited\n\ntwice", document="node-1"),
        "Answer.",
    )


def test_thoughts_are_left_out():
    assert one(ThinkingBlock(content="hm"), TextBlock(text="x")).content == ("x",)


def test_cache_points_stay_where_they_are():
    cache = CachePoint(cache_control=CacheControl(type="ephemeral", ttl="1h"))
    assert one(TextBlock(text="x"), cache, TextBlock(text="y")).content == ("x", Kept("1h"), "\ny")


def test_a_cache_point_of_another_kind_is_refused():
    with pytest.raises(ConfigError, match="ttl must be one of 5m, 1h, got '2h'"):
        one(CachePoint(cache_control=CacheControl(type="ephemeral", ttl="2h")))


def test_tool_calls_and_their_results_go_to_the_template():
    call = ToolCallBlock(tool_call_id="1", tool_name="now", tool_kwargs={"zone": "UTC"})
    written = ToolCallBlock(tool_call_id="2", tool_name="now", tool_kwargs='{"zone": "CET"}')
    calls = one(call, written, role="assistant").extra["tool_calls"]
    assert [each["function"]["arguments"] for each in calls] == [{"zone": "UTC"}, {"zone": "CET"}]
    assert calls[0]["id"] == "1"
    assert one(TextBlock(text="12:00"), role="tool", tool_call_id="1").extra == {"tool_call_id": "1"}


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (ImageBlock(url="https://example.org/x.png"), "ImageBlock"),
        (DocumentBlock(data=b"%PDF-1.7", document_mimetype="application/pdf"), "application/pdf"),
        (DocumentBlock(data=b"\xff\xfe\x00", document_mimetype="text/plain", title="Bad"), "'Bad' is not UTF-8"),
        (CitableBlock(title="t", source="s", content=[ImageBlock(url="https://example.org/x.png")]), "ImageBlock"),
        (CitableBlock(title="Empty", source="s", content=[]), "no text"),
        (DocumentBlock(data=b" \n", document_mimetype="text/plain", title="Blank"), "no text"),
    ],
)
def test_what_is_no_text_is_refused_by_name(block, message):
    with pytest.raises(ConfigError, match=message):
        one(block)


@pytest.mark.parametrize("wrong", [["hello"], "hello", [{"role": "user", "content": "hello"}], [None]])
def test_what_is_no_message_is_refused(wrong):
    with pytest.raises(ConfigError, match="ChatMessage"):
        to_messages(wrong)
