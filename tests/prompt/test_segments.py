"""A prompt is segments in order, and ends with a suffix."""

from __future__ import annotations

import pytest

from ragblend.errors import ConfigError
from ragblend.prompt import Prompt, Segment
from ragblend.prompt.segments import prompt_of
from ragblend.results import Source

SOURCE = Source("a.md", 0, 1.0, "text")


def text(*ids: int) -> Segment:
    return Segment("glue", ids)


def chunk(*ids: int) -> Segment:
    return Segment("chunk", ids, "key", SOURCE)


def shape(*runs: Segment) -> list[tuple[str, tuple[int, ...]]]:
    return [(segment.kind, segment.token_ids) for segment in prompt_of(runs).segments]


def test_a_prompt_ends_with_a_suffix():
    for segments in ((), (Segment("prefix", (1, 2)),), (Segment("suffix", ()),), (Segment("suffix", (1,)), chunk(2))):
        with pytest.raises(ConfigError, match="suffix"):
            Prompt(tuple(segments))


def test_starts_and_ids():
    prompt = Prompt((Segment("prefix", (1, 2)), chunk(3, 4, 5), Segment("suffix", (6,))))
    assert (len(prompt), prompt.token_ids, prompt.starts) == (6, (1, 2, 3, 4, 5, 6), (0, 2, 5))
    assert [segment.token_ids for segment in prompt.chunks] == [(3, 4, 5)]


class TestRunsOfText:
    def test_are_named_by_where_they_stand(self):
        assert shape(text(1), text(2), chunk(3), text(4), text(5), chunk(6), text(7)) == [
            ("prefix", (1, 2)),
            ("chunk", (3,)),
            ("glue", (4, 5)),
            ("chunk", (6,)),
            ("suffix", (7,)),
        ]

    def test_alone_are_a_suffix(self):
        assert shape(text(1), text(2)) == [("suffix", (1, 2))]

    def test_empty_ones_leave_no_trace(self):
        assert shape(text(), chunk(1), text(), chunk(2), text(3)) == [
            ("chunk", (1,)),
            ("chunk", (2,)),
            ("suffix", (3,)),
        ]


class TestChunkAtTheEnd:
    """The last row gives the first token's logits, so it has to be computed."""

    def test_becomes_the_suffix(self):
        assert shape(chunk(1, 2), chunk(3, 4)) == [("chunk", (1, 2)), ("suffix", (3, 4))]

    def test_takes_the_text_before_it_along(self):
        assert shape(text(1), chunk(2), text(3), chunk(4)) == [("prefix", (1,)), ("chunk", (2,)), ("suffix", (3, 4))]

    def test_alone(self):
        assert shape(chunk(1, 2)) == [("suffix", (1, 2))]

    def test_before_nothing_but_empty_text(self):
        assert shape(text(1), chunk(2, 3), text()) == [("suffix", (1, 2, 3))]


def test_chunks_keep_key_and_source():
    [kept] = prompt_of([chunk(1), text(2)]).chunks
    assert (kept.key, kept.source) == ("key", SOURCE)


def test_nothing_is_no_prompt():
    with pytest.raises(ConfigError, match="suffix"):
        prompt_of([text()])
