"""The studio's page in a browser: runs, queues, pictures edited, keyboards, small screens, colours, and errors."""

import base64
import io
import json
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

from PIL import Image
from playwright.sync_api import FilePayload, Page, expect

from recap.cli import main
from tests.server.browsing import NARROW, PATIENCE, Visitor, image_of, picture_of, pixels, png
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
    expect(guest.view("generate").locator(".verdict")).to_contain_text("2 pairs")
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
    guest.fill(model="quick", full=6, local=4, seed=2)
    guest.start()
    guest.finished()
    stage = guest.view("generate").locator(".stage")
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
    expect(line).to_have_attribute("aria-valuetext", re.compile(r"^Step 10 of 10 · local · "))
    line.blur()
    stage.get_by_role("button", name="Replay").click()
    expect(stage.locator(".panes")).not_to_have_attribute("aria-busy", "true")
    until(lambda: np.array_equal(guest.pixels("plain"), plain))


@pytest.mark.parametrize(
    ("pairs", "median", "figure", "words", "about"),
    [
        ([1.8], 1.8, "1.80x", "as fast: reused took", "One pair; 1.75x in processor time. Several images show"),
        ([1.6, 2.0], 1.8, "1.80x", "as fast: reused took", "Median of 2 pairs, 1.60x to 2.00x; 1.75x in"),
        ([0.9, 2.1], None, "", "No clear gain: reused took", "The 2 pairs go from 0.90x to 2.10x: the machine is"),
    ],
)
def test_a_gain_is_said_as_far_as_pairs_allow_one(
    visit: Visit, pairs: list[float], median: float | None, figure: str, words: str, about: str
) -> None:
    def measured(route: Any) -> None:
        answer = route.fetch()
        *lines, last = answer.text().splitlines()
        done = json.loads(last) | {"speedup": {"median": median, "pairs": pairs, "processor": 1.75}}
        route.fulfill(response=answer, body="\n".join([*lines, json.dumps(done)]) + "\n")

    guest = visit()
    guest.page.route("**/api/compare", measured)
    guest.fill(model="quick", full=3, local=2, num=len(pairs))
    guest.start()
    guest.finished()
    verdict = guest.view("generate").locator(".verdict")
    figure, about = (re.sub(r"(\d)x", "\\1\N{MULTIPLICATION SIGN}", text) for text in (figure, about))
    expect(verdict.locator("strong")).to_have_text(figure)
    expect(verdict).to_contain_text(words)
    expect(verdict).to_contain_text(about)
    expect(guest.view("generate").locator(".status")).to_contain_text(figure or "no clear gain")


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


def file(name: str, content: bytes) -> FilePayload:
    return {"name": name, "mimeType": "image/png", "buffer": content}


def choose(page: Page, name: str, content: bytes) -> None:
    """Answer the dialog that the button opens."""
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Choose a picture").click()
    chooser.value.set_files(file(name, content))


def paint(page: Page, *points: tuple[float, float]) -> None:
    """A stroke of the mouse through points in shares of the picture."""
    page.locator("#easel").scroll_into_view_if_needed()
    box = page.locator("#easel").bounding_box()
    assert box is not None
    at = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in points]
    page.mouse.move(*at[0])
    page.mouse.down()
    for point in at[1:]:
        page.mouse.move(*point, steps=4)
    page.mouse.up()


def test_what_is_painted_is_drawn_anew(
    visit: Visit, small_models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guest = visit("edit")
    page, about = guest.page, guest.page.locator("#mask-about")
    guest.fill("edit", model="quick", full=4, local=3, seed=5)
    page.locator("#edit-classes").fill("2")
    page.locator("#edit-classes").press("Enter")
    choose(page, "wide.png", png(96, 64))
    expect(about).to_contain_text("Nothing is masked yet")
    page.locator("#brush-size").fill("40")
    paint(page, (0.1, 0.1), (0.4, 0.1))  # over the first two tokens of the first row of four
    expect(about).to_have_text(re.compile("^2 of 16 tokens"))
    paint(page, (0.1, 0.6), (0.1, 0.9))
    expect(about).to_have_text(re.compile("^4 of 16 tokens"))
    page.get_by_role("button", name="Undo").click()
    expect(about).to_have_text(re.compile("^2 of 16 tokens"))
    page.get_by_role("button", name="Erase").click()
    paint(page, (0.35, 0.02), (0.45, 0.25))
    page.get_by_role("button", name="Paint").click()
    page.get_by_role("button", name="Bottom half").click()
    expect(about).to_have_text(re.compile("^(9|10) of 16 tokens"))
    guest.start("edit")
    guest.finished("edit")
    sent = guest.sent()
    mask = picture_of(sent["mask"])[..., 0]
    assert picture_of(sent["image"]).shape == (64, 64, 3)  # the middle of what was chosen
    assert np.array_equal(np.unique(mask), [0, 255])
    assert (mask[33:] == 255).all()
    assert mask[6, 8] == 255
    assert (mask[:30, 34:] == 0).all()
    monkeypatch.chdir(tmp_path)
    Path("quick").symlink_to(small_models["quick"])
    for name in ("image", "mask"):
        Path(f"{name}.png").write_bytes(base64.b64decode(sent[name]))
    for command, pane in zip(guest.commands("edit"), ("plain", "reused"), strict=True):
        assert main(shlex.split(command)[1:]) == 0
        assert np.array_equal(guest.pixels(pane, view="edit"), image_of(next((tmp_path / pane).glob("0*.png"))))


def test_pictures_that_do_not_fit(visit: Visit) -> None:
    guest = visit("edit")
    page, about, error = guest.page, guest.page.locator("#mask-about"), guest.page.locator("#picture-error")
    guest.fill("edit", model="quick")
    guest.start("edit")
    expect(page.get_by_role("alert").filter(has_text="There is no picture yet")).to_be_visible()
    choose(page, "good.png", png(40, 40))
    page.get_by_text("A rectangle by numbers").click()
    page.get_by_role("button", name="Add the rectangle").click()
    expect(about).to_have_text(re.compile("^4 of 16 tokens"))
    for name, content in (("notes.png", b"no picture at all"), ("nothing.png", b""), ("half.png", png(40, 40)[:60])):
        choose(page, name, content)
        expect(error).to_contain_text(name)
    expect(about).to_have_text(re.compile("^4 of 16 tokens"))  # what was there is there still
    Image.new("RGB", (5000, 3600), "teal").save(large := io.BytesIO(), "JPEG")  # more pixels than the server takes
    choose(page, "large.jpg", large.getvalue())
    expect(error).to_be_hidden()
    expect(about).to_contain_text("Nothing is masked yet")
    page.get_by_role("button", name="Left half").click()
    guest.fill("edit", full=2, local=0)
    guest.start("edit")
    expect(page.get_by_role("alert").filter(has_text="Choose the class")).to_be_visible()
    page.locator("#view-edit").get_by_role("button", name="Surprise me").click()
    guest.start("edit")
    guest.finished("edit")
    assert picture_of(guest.sent()["image"]).shape == (1024, 1024, 3)


def test_a_generated_image_is_edited(visit: Visit) -> None:
    guest = visit()
    guest.fill(model="quick", full=3, local=1, num=2)
    guest.start()
    guest.finished()
    images = [guest.pixels("reused", index) for index in range(2)]
    guest.page.get_by_role("tab", name="Edit").click()
    guest.page.get_by_role("button", name="Edit image 2").click()
    guest.page.get_by_role("button", name="Right half").click()
    guest.page.locator("#view-edit").get_by_role("button", name="Surprise me").click()
    guest.fill("edit", full=3, local=1)
    guest.start("edit")
    guest.finished("edit")
    assert np.array_equal(picture_of(guest.sent()["image"]), images[1])


def test_results_can_be_tried(visit: Visit) -> None:
    guest = visit("results")
    page = guest.page
    points = page.locator("#plot .point")
    expect(points.first).to_be_visible()
    wanted = page.locator('#plot .point.reused:not([aria-disabled])[aria-label^="24+8:"]')
    wanted.hover()
    expect(page.locator("#plot .tip")).to_contain_text("24 full + 8 local")
    wanted.click()
    expect(page.get_by_role("tab", name="Generate")).to_have_attribute("aria-selected", "true")
    for field, value in (("model", "flowers-maskgit"), ("full", "24"), ("local", "8")):
        expect(page.locator(f"#generate-{field}")).to_have_value(value)
    page.get_by_role("tab", name="Results").click()
    page.locator("#plot .point[tabindex='0']").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    second = page.locator("#plot .point").nth(1)
    expect(second).to_be_focused()
    label = second.get_attribute("aria-label") or ""
    page.keyboard.press("Enter")
    expect(page.locator("#generate-full")).to_have_value(label.split(":")[0].split("+")[0])
    page.get_by_role("tab", name="Results").click()
    page.get_by_role("button", name="flowers-mar").click()
    page.get_by_text("The same points as a table").click()
    rows = page.locator("#results-table tbody tr")
    expect(rows).to_have_count(points.count())
    page.get_by_role("button", name="Time an image").click()
    times = [cell.split() for cell in rows.locator("td:nth-child(3)").all_text_contents()]
    seconds = [float(value) / (1000 if unit == "ms" else 1) for value, unit in times]
    assert seconds == sorted(seconds)


def test_what_goes_wrong_is_said(visit: Visit) -> None:
    guest = visit()
    guest.forgiven |= {"status of 422", "status of 429", "ERR_INTERNET_DISCONNECTED"}
    page, status = guest.page, guest.view("generate").locator(".status")
    guest.fill(model="quick", full=2, local=9)
    told = page.locator("#generate-plan-error")
    expect(told).to_be_visible()
    expect(page.locator("#generate-local")).to_have_attribute("aria-invalid", "true")
    sent = len([request for request in guest.requests if request.url.endswith("/api/compare")])
    guest.start()
    expect(guest.view("generate").locator(".action [role=alert]")).to_have_text(told.text_content() or "")
    assert sent == len([request for request in guest.requests if request.url.endswith("/api/compare")])
    page.get_by_role("button", name="Reset to the model's own").click()
    expect(told).to_be_hidden()
    full = {"error": {"code": "busy", "message": "16 runs are waiting already."}}
    page.route(
        "**/api/compare",
        lambda route: route.fulfill(status=429, headers={"Retry-After": "7"}, body=json.dumps(full)),
    )
    guest.start()
    problem = guest.view("generate").locator(".action [role=alert]")
    expect(problem).to_have_text("16 runs are waiting already. Try again in 7 seconds.")
    page.unroute("**/api/compare")
    guest.start()
    guest.finished()
    expect(problem).to_be_hidden()
    guest.context.set_offline(True)
    guest.start()
    expect(problem).to_contain_text("The server does not answer")
    guest.context.set_offline(False)
    guest.start()
    guest.finished()
    expect(status).to_contain_text("Finished")
