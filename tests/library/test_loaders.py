"""Documents of each format."""

from __future__ import annotations

import pytest

from ragblend.errors import DocumentError
from ragblend.library.loaders import load

PAGE = b"""<html><head><title> The
 manual </title><style>p {}</style></head>
<body><nav>Home</nav><h1>Robots</h1><div>Before<p>A <b>bold</b> word,<br>and&nbsp;more</p>after</div>
<h2>Prices</h2><table><tr><th>Model</th><th>Price</th></tr><tr><td>Wren</td><td>890</td></tr></table>
<pre>x = 1
  y</pre><!-- hidden --><script>alert()</script></body></html>"""


def reason(path: str, data: bytes) -> str:
    with pytest.raises(DocumentError) as caught:
        load(path, data)
    assert caught.value.path == path
    return caught.value.reason


class TestText:
    def test_markdown(self):
        document = load("a.MD", b"# Title\n\nText")
        assert (document.title, len(document.headings)) == ("Title", 1)

    def test_plain_text_has_no_title_and_no_headings(self):
        document = load("a.txt", b"# 1\n\nText")
        assert (document.title, document.text, document.headings) == ("", "# 1\n\nText", ())

    def test_lines_of_prose_are_joined_and_lines_of_code_are_not(self):
        text = b"a line of more than forty characters, with\na second one"
        assert "\n" not in load("README", text).text
        assert "\n" in load("a.py", text).text

    def test_nothing_but_space(self):
        assert reason("a.txt", b" \n\n") == "no text in it"

    def test_binary(self):
        assert reason("a.txt", b"\x89PNG\0") == "binary file (contains NUL bytes)"


class TestHtml:
    def test_text_by_block(self):
        document = load("a.html", PAGE)
        assert document.title == "The manual"
        assert document.text.split("\n\n") == [
            "Robots",
            "Before",
            "A bold word, and more",
            "after",
            "Prices",
            "Model | Price",
            "Wren | 890",
            "x = 1\n  y",
        ]

    def test_headings(self):
        document = load("a.html", PAGE)
        lines = [document.text[heading.start : heading.end] for heading in document.headings]
        assert lines == [heading.text for heading in document.headings] == ["Robots", "Prices"]
        assert document.heading_path(document.text.index("Wren")) == "Robots > Prices"

    def test_the_pages_own_encoding(self):
        page = '<meta charset="shift_jis"><p>保証は二年です'.encode("shift-jis")
        assert load("a.htm", page).text == "保証は二年です"

    def test_without_text(self):
        assert reason("a.html", b"<script>x</script>") == "no text in it"
        assert reason("a.html", b"<p>\0") == "binary file (contains NUL bytes)"


class TestPdf:
    def test_pages_and_title(self, pdf):
        document = load("a.pdf", pdf(["The warranty", "lasts two years."], title="Manual"))
        assert (document.title, document.text) == ("Manual", "The warranty\nlasts two years.")
        assert document.heading_path(document.text.index("lasts")) == "page 2"

    def test_wrapped_lines_and_page_ends_inside_sentences(self, pdf):
        first = "This line of the page is longer than forty characters\nand wrapped, and the page ends before the verb"
        assert load("a.pdf", pdf([first, "does."])).text == f"{first} does.".replace("\n", " ")

    def test_recognised_by_content(self, pdf):
        assert load("download", pdf(["Hello"])).text == "Hello"

    def test_encrypted(self, pdf):
        assert reason("a.pdf", pdf(["x"], password="secret")) == "encrypted PDF: save a copy without the password"

    @pytest.mark.parametrize("length", [0, 5, 100, 400])
    def test_malformed(self, pdf, length):
        assert reason("a.pdf", pdf(["Hello"])[:length]).startswith("not a readable PDF")

    def test_without_text(self, pdf):
        assert reason("a.pdf", pdf([""])) == "no text in it"
