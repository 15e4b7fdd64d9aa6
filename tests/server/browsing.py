"""Visitors with a browser: what they do, what they see, and what the page asked for meanwhile."""

import base64
import io
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

pytest.importorskip("playwright", reason="playwright is not installed; the extra dev brings it")

from PIL import Image
from playwright.sync_api import Browser, BrowserContext, Error, Locator, Page, Request, expect, sync_playwright

from tests.server.served import few, slow
from tests.writing import write_model

PATIENCE = 30_000  # milliseconds
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# no sandbox, because that needs rights that containers rarely have; and nothing that asks the network on its own
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
ARGUMENTS += ["--disable-component-update", "--disable-sync", "--disable-default-apps", "--disable-extensions"]
NARROW = {"width": 360, "height": 740}
READ = """canvas => {
  const { width, height } = canvas;
  const copy = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(canvas, 0, 0);
  return [width, height, ...copy.getImageData(0, 0, width, height).data];
}"""


def folders(place: Path) -> dict[str, Path]:
    """Small models: a quick one, one that takes a while, and one of text."""
    quick = few("maskgit").save_pretrained(place / "quick")
    return {"quick": quick, "slow": slow(80).save_pretrained(place / "slow"), "words": write_model(place / "words")}


@contextmanager
def launched() -> Iterator[Browser]:
    """A browser with a new profile: the one that CHROMIUM names, one on the path, or Playwright's own.

    Without one a test is skipped, but not where CI is to see all of them.
    """
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        except Error:
            if path or os.environ.get("CI"):
                raise
            pytest.skip("there is no Chromium; `python -m playwright install chromium` installs one")
        try:
            yield browser
        finally:
            browser.close()


class Visitor:
    """Somebody with the page open. What the page asks for and complains of is written down."""

    def __init__(self, browser: Browser, address: str, view: str = "generate", **options: Any) -> None:
        self.address = address
        self.context: BrowserContext = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        self.context.set_default_timeout(PATIENCE)
        self.page: Page = self.context.new_page()
        self.requests: list[Request] = []
        self.problems: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request))
        self.page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        self.page.on("console", lambda message: self._heard(message.type, message.text))
        self.forgiven: set[str] = set()  # words of complaints that a test provokes
        self.page.goto(f"{address}/#{view}")
        self.page.wait_for_selector("html[data-ready]")

    def _heard(self, kind: str, text: str) -> None:
        if kind in ("error", "warning") and not any(words in text for words in self.forgiven):
            self.problems.append(f"{kind}: {text}")

    def leave(self) -> None:
        """Close the page, and look at what it did."""
        self.context.close()
        assert not self.problems, self.problems
        ours = urlsplit(self.address).netloc
        asked = [urlsplit(request.url) for request in self.requests]
        assert asked
        assert not [part for part in asked if part.scheme not in ("blob", "data") and part.netloc != ours]

    def view(self, name: str) -> Locator:
        return self.page.locator(f"#view-{name}")

    def fill(self, view: str = "generate", **values: Any) -> None:
        """Put values into the fields of a view."""
        form = self.view(view)
        if "model" in values:
            form.locator("[name=model]").select_option(values.pop("model"))
        for name, value in values.items():
            form.locator(f"input[name={name}]").fill(str(value))

    def start(self, view: str = "generate") -> None:
        self.view(view).locator(".primary").click()

    def finished(self, view: str = "generate") -> None:
        """Wait for the end of a run."""
        expect(self.view(view).locator(".status")).to_contain_text("Finished", timeout=PATIENCE)

    def pixels(self, pane: str, image: int = 0, view: str = "generate") -> Any:
        """What the canvas of a pane holds (h, w, 3)."""
        return pixels(self.view(view).locator(f"[data-pane={pane}] canvas.picture").nth(image))

    def sent(self) -> dict[str, Any]:
        """The body of the latest comparison that was asked for."""
        bodies = [request.post_data for request in self.requests if urlsplit(request.url).path == "/api/compare"]
        return json.loads(bodies[-1] or "{}")

    def commands(self, view: str = "generate") -> list[str]:
        """The command lines on show."""
        shown = self.view(view).locator(".command code")
        expect(shown.first).to_be_visible()
        return shown.all_text_contents()


def pixels(canvas: Locator) -> Any:
    """What a canvas holds (h, w, 3), read from a copy."""
    found = canvas.evaluate(READ)
    width, height = found[:2]
    values = np.array(found[2:], np.uint8).reshape(height, width, 4)
    assert (values[..., 3] == 255).all()
    return values[..., :3]


def image_of(path: Path) -> Any:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def picture_of(text: str) -> Any:
    """The pixels of a picture that was sent as base64."""
    with Image.open(io.BytesIO(base64.b64decode(text))) as image:
        return np.asarray(image.convert("RGB"))


def png(width: int, height: int) -> bytes:
    """A picture without two equal pixels in a row or column."""
    ramp = np.linspace(0, 255, width * height).reshape(height, width)
    values = np.stack([ramp, ramp.T.reshape(height, width), 255 - ramp], axis=2).astype(np.uint8)
    Image.fromarray(values).save(file := io.BytesIO(), "PNG")
    return file.getvalue()
