"""The studio's page in a browser: runs, queues, keyboards, small screens and colours."""

import re
import shlex
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="fastapi is not installed; the extra demo brings it")
pytest.importorskip("playwright", reason="playwright is not installed; the extra dev brings it")

from playwright.sync_api import expect

from recap.cli import main
from tests.server.browsing import NARROW, PATIENCE, Visitor, image_of, pixels
from tests.server.served import until

pytestmark = pytest.mark.xdist_group("browser")
Visit = Callable[..., Visitor]
LONG: dict[str, Any] = {"model": "slow", "num": 4, "full": 16, "local": 0}  # takes seconds
# contrast of every text that is seen against what is behind it, the worst first
CONTRAST = """() => {
  const luminance = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const parse = text => { const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number); return [r, g, b, a]; };
  const behind = element => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour[3] > 0.99) return colour;
    }
    return [255, 255, 255, 1];
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const text = [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
    if (!text || !element.checkVisibility() || element.closest(":disabled, svg, .skip, option")) continue;
    const [a, b] = [parse(getComputedStyle(element).color), behind(element)].map(luminance);
    found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), element.textContent.trim().slice(0, 40)]);
  }
  return found.sort((x, y) => x[0] - y[0]);
}"""


def test_both_panes_end_in_the_files_of_the_command_line(
    visit: Visit, small_models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guest = visit()
    guest.fill(model="quick", num=2, seed=11, full=5, local=3)
    classes = guest.page.get_by_role("combobox", name="Classes")
    for text in ("class 3", "1"):
        classes.fill(text)
        classes.press("Enter")
    classes.press("Escape")
    expect(guest.view("generate").locator(".chips li")).to_have_text([re.compile("class 3"), re.compile("class 1")])
    guest.start()
    guest.finished()
    expect(guest.view("generate").locator(".verdict strong")).to_have_text(re.compile(r"^\d+\.\d+\D$"))
    assert guest.sent()["labels"] == [3, 1]
    for pane, ticks in (("plain", ["full"] * 8), ("reused", ["full", "local"] * 3 + ["full"] * 2)):
        kinds = guest.view("generate").locator(f"[data-pane={pane}] .timeline .tick.done")
        found = [str(kind).split()[1] for kind in kinds.evaluate_all("all => all.map(t => t.getAttribute('class'))")]
        assert sorted(found) == sorted(ticks)
    monkeypatch.chdir(tmp_path)
    Path("quick").symlink_to(small_models["quick"])
    for command, pane in zip(guest.commands(), ("plain", "reused"), strict=True):
        assert main(shlex.split(command)[1:]) == 0
        for index in range(2):
            written = image_of(tmp_path / pane / f"{index:06}.png")
            assert np.array_equal(guest.pixels(pane, index), written)


def test_what_is_shown_after_a_run(visit: Visit) -> None:
    guest = visit()
    guest.view("generate").locator("summary").click()
    guest.page.get_by_role("checkbox", name="Measure how far").check()
    guest.fill(model="quick", full=6, local=4, seed=2)
    guest.start()
    guest.finished()
    stage = guest.view("generate").locator(".stage")
    expect(stage.locator(".drift .dot")).to_have_count(4)  # one for every local evaluation
    stage.get_by_role("button", name="Difference", exact=True).click()
    stage.locator(".compare input").fill("1")
    shown = pixels(stage.locator(".compare canvas"))
    plain, reused = (guest.pixels(pane).astype(int) for pane in ("plain", "reused"))
    assert np.array_equal(shown, np.abs(plain - reused))
    with guest.page.expect_download() as download:
        stage.get_by_role("button", name="ZIP").click()
    assert zipfile.is_zipfile(download.value.path())
    line = stage.locator("[data-pane=reused] .timeline")
    line.focus()
    line.press("Home")
    expect(line).to_have_attribute("aria-valuetext", re.compile(r"^Step 1 of 10 · full · 1 token · 1 decoded"))
    line.press("End")
    expect(line).to_have_attribute("aria-valuetext", re.compile(r"^Step 10 of 10 · local · .* · drift "))
    line.blur()
    stage.get_by_role("button", name="Replay").click()
    expect(stage.locator(".panes")).not_to_have_attribute("aria-busy", "true")
    until(lambda: np.array_equal(guest.pixels("plain"), plain))


def test_cancelling_and_leaving_make_room(visit: Visit) -> None:
    guest = visit()
    guest.fill(**LONG)
    guest.start()
    ticks = guest.view("generate").locator("[data-pane=plain] .timeline .tick.done")
    expect(ticks.first).to_be_attached(timeout=PATIENCE)
    guest.page.keyboard.press("Escape")
    status = guest.view("generate").locator(".status")
    expect(status).to_have_text("Cancelled.")
    expect(guest.page.get_by_role("button", name="Generate")).to_be_visible()
    done = ticks.count()
    assert done < 16
    guest.start()
    expect(status).to_have_text("The run is under way")
    guest.page.reload()  # leaves the run behind
    guest.page.wait_for_selector("html[data-ready]")
    guest.fill(model="quick", full=4, local=0)
    guest.start()
    guest.finished()


def test_two_visitors_at_once(visit: Visit) -> None:
    first, second = visit(), visit()
    first.fill(**{**LONG, "num": 1})
    first.start()
    expect(first.view("generate").locator(".status")).to_have_text("The run is under way")
    second.fill(model="quick", full=4, local=2)
    second.start()
    expect(second.view("generate").locator(".status")).to_contain_text("Position 1 in the queue")
    second.finished()
    first.finished()


def test_by_keyboard_alone(visit: Visit) -> None:
    guest = visit()
    page = guest.page

    def tab_to(name: str) -> None:
        """Press Tab until something is reached, and see that it is seen."""
        for _ in range(40):
            page.keyboard.press("Tab")
            focused = page.locator(":focus")
            label = focused.evaluate("e => e.labels?.[0]?.textContent ?? e.ariaLabel ?? e.textContent")
            assert focused.evaluate(
                "e => getComputedStyle(e.closest('.combo') ?? e).outlineStyle !== 'none' || e.matches('.point')"
            ), label
            if name in label:
                return
        raise AssertionError(f"{name} was not reached")

    tab_to("Generate")  # the tab
    page.keyboard.press("ArrowRight")
    expect(page).to_have_url(re.compile("#edit$"))
    page.keyboard.press("Home")
    expect(page).to_have_url(re.compile("#generate$"))
    tab_to("Model")
    page.keyboard.type("quick")
    tab_to("Classes")
    page.keyboard.type("cla")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    expect(page.locator("#view-generate .chips li")).to_have_text([re.compile("class 1")])
    tab_to("Full evaluations")
    page.keyboard.press("Home")
    expect(page.locator("#generate-full")).to_have_value("1")
    page.keyboard.press("ArrowRight")
    tab_to("Local evaluations")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    tab_to("Generate")
    page.keyboard.press("Enter")
    guest.finished()
    assert {name: guest.sent()[name] for name in ("full", "local", "labels")} == {
        "full": 2,
        "local": 1,
        "labels": [1],
    }
    with page.expect_request("**/api/compare"):
        page.keyboard.press("Control+Enter")
    guest.finished()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_can_be_read(visit: Visit, scheme: str) -> None:
    guest = visit(color_scheme=scheme)
    guest.fill(model="quick", full=3, local=2)
    guest.view("generate").locator("summary").click()
    guest.start()
    guest.finished()
    for view in ("Generate", "Edit", "Results"):
        guest.page.get_by_role("tab", name=view).click()
        found = guest.page.evaluate(CONTRAST)
        assert len(found) > 10
        assert found[0][0] >= 4.5, found[:5]
    assert guest.page.locator("html").get_attribute("data-theme") == scheme
    guest.page.get_by_role("button", name="Dark theme").click()
    other = "light" if scheme == "dark" else "dark"
    guest.page.reload()
    assert guest.page.locator("html").get_attribute("data-theme") == other


def test_a_narrow_screen(visit: Visit) -> None:
    guest = visit(viewport=NARROW, is_mobile=True, has_touch=True, reduced_motion="reduce")
    guest.fill(model="quick", full=3, local=2, num=3)
    guest.start()
    guest.finished()
    for view in ("generate", "edit", "results"):
        guest.page.get_by_role("tab", name=view.capitalize()).click()
        for folded in guest.view(view).locator("summary").all():
            folded.click()
        assert guest.page.evaluate("document.documentElement.scrollWidth") == NARROW["width"]
        inputs = "button, a, select, input:not([type=file])"
        reached = guest.view(view).locator(f":is({inputs}):visible:enabled")
        assert reached.count() > 3
        for control in reached.all():
            control.click(trial=True)
