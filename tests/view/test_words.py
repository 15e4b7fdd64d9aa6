"""Texts in a terminal: what is shown is harmless, fits, and says what each token is."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from recap.runs.draw import draw
from recap.view.frames import TokenState
from recap.view.pace import DisplayBudget
from recap.view.pieces import HOLE
from recap.view.say import printable
from recap.view.terminal import DRAWN, window
from recap.view.words import TextPreview, coloured
from tests.view.test_preview import Pages, console
from tests.writing import text_pipeline

OBEYED = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")  # categories of what moves cursors, hides, or turns text around


@given(st.text(st.characters(codec=None, categories=None)))
def test_what_is_printed_is_harmless_and_the_rest_as_it_was(text: str) -> None:
    shown = printable(text, keep="\n")
    assert all(unicodedata.category(sign) not in OBEYED or sign == "\n" for sign in shown)
    fine = "".join(sign for sign in text if sign == "\n" or unicodedata.category(sign) not in OBEYED)
    assert printable(fine, keep="\n") == fine
    assert not printable(text, keep="").count("\n")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("a\u202eb", "a\\u202eb"),
        ("caf\u00e9\u00a0\u4e16\u3000\U0001f33b", "caf\u00e9\u00a0\u4e16\u3000\U0001f33b"),
        ("\r\n\t", "\\r\n\t"),
        ("\ud800\x9b2J", "\\ud800\\x9b2J"),
    ],
)
def test_escapes(text: str, shown: str) -> None:
    assert printable(text, keep="\n\t") == shown


def test_every_sub_step_shows_what_each_token_is() -> None:
    pipe: Any = text_pipeline()
    pages = Pages()
    works = pipe.works("he said", gen_length=12, seed=1, schedule="3+9:temperature=1.5")
    preview = TextPreview(pipe, pages, "title", 1)
    preview.budget = DisplayBudget(share=1e9)
    pages.pages.clear()
    assert len(list(draw(pipe, works, preview))) == 1
    assert len(pages.pages) == 12  # all but the last, and the finished text
    for step, page in enumerate(pages.pages, start=1):
        shown = "\n".join(page)
        assert "he said" in shown
        assert shown.count(HOLE) == 12 - step
        assert f"written {step}/12" in shown
        assert not any(ord(sign) < 32 and sign not in "\n\x1b" for sign in shown)


def test_long_texts_show_where_something_happens() -> None:
    before = [(f"line {number}\n", TokenState.CONTEXT) for number in range(30)]
    text = coloured([*before, ("now", TokenState.DRAWN), *before])
    shown = window(text, console(width=40), 7)
    assert len(shown.plain.split("\n")) == 7
    assert "now" in shown.plain
    assert any(span.style == DRAWN for span in shown.spans)
    assert window(Text("short"), console(width=40), 7).plain == "short"
    assert len(window(text, console(width=40), 0).plain.split("\n")) == 1  # a terminal of few lines
