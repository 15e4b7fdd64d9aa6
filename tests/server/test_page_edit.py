"""The studio's page in a browser: pictures edited, results tried, and what is said when something goes wrong."""

import base64
import io
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="fastapi is not installed; the extra demo brings it")
pytest.importorskip("playwright", reason="playwright is not installed; the extra dev brings it")

from PIL import Image
from playwright.sync_api import FilePayload, Page, expect

from recap.cli import main
from tests.server.browsing import Visitor, image_of, picture_of, png

pytestmark = pytest.mark.xdist_group("browser")
Visit = Callable[..., Visitor]


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
