"""Limits on the parsing of hostile files."""

from __future__ import annotations

import shutil
import sys

import pytest

from ragblend.library.extract import ExtractionError, extract


def test_time(pdf):
    with pytest.raises(ExtractionError, match=r"reading the PDF took longer than 0.001 s"):
        extract("pdf", pdf(["x"]), time_limit_s=0.001)


def test_memory():
    page = b"<p>x" * 300_000
    with pytest.raises(ExtractionError, match=r"needs more than 150,000,000 bytes|reader ended with status"):
        extract("html", page, memory_limit_bytes=150_000_000)


def test_nested_beyond_recursion():
    _, blocks = extract("html", b"<div>" * 5000 + b"deep" + b"</div>" * 5000)
    assert blocks == [(0, "deep")]


def test_a_reader_that_dies_is_a_reason_not_a_crash(monkeypatch):
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(ExtractionError, match=r"the HTML reader ended with status 1"):
        extract("html", b"<p>x")
