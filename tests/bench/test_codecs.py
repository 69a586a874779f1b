"""What ``bench store`` reports: sizes that agree with the codecs', and fidelity that compression does not change."""

from __future__ import annotations

import pytest

from ragblend.bench import codecs
from ragblend.bench.codecs import CodecReport
from ragblend.engine import Engine
from ragblend.errors import ConfigError
from tests.bench.conftest import write_questions

NAMES = ["raw", "int8", "int4", "fp8", "int4+zstd"]


@pytest.fixture(scope="module")
def report(tiny_engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> CodecReport:
    data = write_questions(tmp_path_factory.mktemp("questions"))
    return codecs.run(
        tiny_engine, codecs=NAMES, tokens=200, chunk_tokens=100, repeats=1, data=data, policies=["none", "query@0.5"]
    )


def test_each_codec_has_a_row_and_smaller_ones_take_less(report: CodecReport) -> None:
    assert [row.codec for row in report.rows] == NAMES
    size = {row.codec: row.bytes_per_token for row in report.rows}
    assert size["int4"] < size["int8"] < size["raw"]
    assert size["fp8"] == pytest.approx(size["int8"], rel=0.01)
    for row in report.rows:
        assert row.share_of_bf16 > 0
        assert min(row.write_mb_s, row.read_mb_s, row.place_s) > 0


def test_raw_in_float32_takes_twice_what_bf16_would(report: CodecReport) -> None:
    assert 2.0 < report.rows[0].share_of_bf16 < 2.3  # of a tiny entry, the header is a tenth


def test_fidelity_is_that_of_the_numbers(report: CodecReport) -> None:
    named = [(row.policy, row.ratio, row.codec) for row in report.fidelity]
    numbers = ("raw", "int8", "int4", "fp8")
    assert named == [
        ("full", 1.0, ""),
        *(("none", 0.15, codec) for codec in numbers),
        *(("query", 0.5, codec) for codec in numbers),
    ]
    assert all(row.n == 3 for row in report.fidelity)


def test_raw_is_what_the_others_are_compared_with(report: CodecReport) -> None:
    for row in report.fidelity[1:]:
        raw = next(each for each in report.fidelity if (each.policy, each.codec) == (row.policy, "raw"))
        assert row.versus_raw["kl_to_full"].mean == pytest.approx(row.kl_to_full - raw.kl_to_full)
    assert report.fidelity[0].kl_to_full == 0.0


def test_int8_is_closer_to_raw_than_int4(report: CodecReport) -> None:
    lost = {row.codec: abs(row.versus_raw["gold_nll"].mean) for row in report.fidelity if row.policy == "none"}
    assert lost["int8"] < lost["int4"]


@pytest.mark.parametrize("settings", [{"tokens": 0}, {"repeats": 0}, {"chunk_tokens": 0}, {"codecs": []}])
def test_settings_that_make_no_sense_are_refused(tiny_engine: Engine, settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        codecs.run(tiny_engine, **{"codecs": ["raw"], **settings})  # type: ignore[arg-type]
