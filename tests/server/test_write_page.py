"""The view of texts, as visitors see it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="fastapi is not installed; the extra demo brings it")
pytest.importorskip("playwright", reason="playwright is not installed; the extra dev brings it")

from playwright.sync_api import expect

from recap.cli import main
from tests.server.browsing import PATIENCE, Visitor

Visit = Callable[..., Visitor]
PHONE = {"width": 390, "height": 844}
PROMPT = "he said"


def ask(guest: Visitor, prompt: str = PROMPT, **values: Any) -> None:
    view = guest.view("write")
    view.locator("[name=prompt]").fill(prompt)
    view.locator("summary").first.click()
    guest.fill("write", **values)
    expect(view.locator(".plan")).not_to_have_class(re.compile("stale"))


def test_both_runs_write_the_texts_of_the_commands_on_show(
    visit: Visit, small_models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guest = visit("write")
    view = guest.view("write")
    leaves = view.locator("[data-pane=reused] .leaf")
    expect(leaves).to_have_count(1)  # before any run: the prompt, and holes
    ask(guest, tokens=24, seed=5, num=2, temperature=1.5)
    expect(view.locator("[name=full]")).to_have_value("6")  # the model's own for so many tokens
    expect(view.locator("[name=local]")).to_have_value("18")
    expect(leaves).to_have_count(2)
    expect(leaves.first.locator(".known")).to_have_text(PROMPT)
    expect(leaves.first.locator(".hole")).to_have_count(24)
    guest.start("write")
    guest.finished("write")
    expect(view.locator(".verdict")).to_contain_text("of the tokens differ")
    assert view.locator(".hole").count() == 0
    monkeypatch.chdir(small_models["words"].parent)
    for pane, line in zip(("plain", "reused"), guest.commands("write"), strict=True):
        recap, *argv = shlex.split(line)
        assert recap == "recap"
        argv[argv.index("--out") + 1] = str(tmp_path / pane)
        assert main(argv) == 0
        written = [path.read_bytes().decode() for path in sorted((tmp_path / pane).glob("0*.txt"))]
        shown = view.locator(f"[data-pane={pane}] .words").evaluate_all("all => all.map(each => each.textContent)")
        assert shown == [PROMPT + text for text in written]
    steps = view.locator("[data-pane=reused] .timeline")
    steps.focus()
    steps.press("Home")
    expect(steps).to_have_attribute("aria-valuetext", re.compile(r"^Step 1 of 24 · full · 1 token · 1 decoded"))
    expect(leaves.first.locator(".hole")).to_have_count(23)
    steps.blur()
    expect(leaves.first.locator(".hole")).to_have_count(0)
    view.get_by_role("button", name="Replay").click()
    expect(view.locator(".panes")).not_to_have_attribute("aria-busy", "true", timeout=PATIENCE)
    expect(leaves.first.locator(".hole")).to_have_count(0)
    sent = [request for request in guest.requests if request.url.endswith("/api/write")]
    assert f'"prompt":"{PROMPT}"' in (sent[-1].post_data or "")


def test_words_are_never_markup(visit: Visit) -> None:
    guest = visit("write")
    prompt = "<img src=x onerror=alert(1)><b>he</b>"
    ask(guest, prompt, tokens=4)
    view = guest.view("write")
    guest.start("write")
    guest.finished("write")
    expect(view.locator("[data-pane=plain] .known")).to_have_text(prompt)
    assert view.locator(".leaf img, .leaf b").count() == 0


def test_by_keyboard_alone(visit: Visit) -> None:
    guest = visit("write")
    page = guest.page
    page.locator("#tab-write").focus()
    page.keyboard.press("ArrowRight")
    expect(page).to_have_url(re.compile("#results$"))
    page.keyboard.press("ArrowLeft")
    expect(page).to_have_url(re.compile("#write$"))
    for _ in range(8):
        page.keyboard.press("Tab")
        if page.locator(":focus").get_attribute("name") == "prompt":
            break
    page.keyboard.press("Control+A")
    page.keyboard.type("the")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.locator(":focus").get_attribute("name") == "tokens"
    page.keyboard.press("Control+A")
    page.keyboard.type("8")
    expect(guest.view("write").locator("[name=full]")).to_have_value("2")
    page.keyboard.press("Control+Enter")
    guest.finished("write")
    expect(guest.view("write").locator("[data-pane=reused] .known")).to_have_text("the")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_runs_over_on_a_phone(visit: Visit, theme: str) -> None:
    guest = visit("write", viewport=PHONE, color_scheme=theme)
    ask(guest, "a" * 200, tokens=8, num=2, full=4, local=4)
    guest.start("write")
    guest.finished("write")
    assert guest.page.evaluate("() => document.documentElement.scrollWidth") == PHONE["width"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"tokens": ""}, "The number of tokens is missing; give 1 to 64."),
        ({"tokens": 100}, "The number of tokens is 100; give 1 to 64."),
        ({"num": 9}, "The number of texts is 9; give 1 to 4."),
        ({"tokens": 64}, "but the model has places for 64; shorten the prompt"),
        ({"tokens": 24, "block": 5}, "do not divide into blocks of 5"),
    ],
)
def test_what_cannot_be_is_said(visit: Visit, values: dict[str, Any], words: str) -> None:
    guest = visit("write")
    guest.forgiven.add("422")
    view = guest.view("write")
    view.locator("[name=prompt]").fill(PROMPT)
    view.locator("summary").first.click()
    guest.fill("write", **values)
    guest.page.wait_for_timeout(600)  # until the server was asked what it costs
    guest.start("write")
    expect(view.locator("[data-part=problem]")).to_contain_text(words)


def test_models_are_where_they_belong(visit: Visit) -> None:
    guest = visit("write")
    names = guest.view("write").locator("[name=model] option").all_text_contents()
    assert "words" in names
    pictures = guest.view("generate").locator("[name=model] option").all_text_contents()
    assert "quick" in pictures
    assert not {*names} & {*pictures}
