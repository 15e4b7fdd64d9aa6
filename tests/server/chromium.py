"""A Chromium to test the page with: found where it usually is, or installed by `python -m tests.server.chromium`."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

VARIABLE = "CHROMIUM"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# no sandbox, because that needs rights that containers rarely have; and nothing that asks the network on its own
ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-default-apps", "--disable-extensions"),
)
APT = ("apt-get", "-o", "Acquire::Retries=3")
HELP = (
    "install Chromium or Google Chrome with your system's package manager, or name one with "
    f"{VARIABLE}=/path/to/chromium; without it the tests of the studio's page are skipped"
)


def found() -> Path | None:
    """The browser to use: the one that CHROMIUM names, one on the path, or Playwright's own."""
    named = os.environ.get(VARIABLE)
    if named:
        if shutil.which(named) is None:
            raise ValueError(f"{VARIABLE} is {named!r}, which is no program that can be run; {HELP}")
        return Path(named)
    usual = next((path for name in NAMES if (path := shutil.which(name))), None)
    return Path(usual) if usual else playwrights()


def playwrights() -> Path | None:
    """The browser that Playwright has installed for itself, if it has."""
    if importlib.util.find_spec("playwright") is None:
        return None
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = Path(playwright.chromium.executable_path)
    return path if path.is_file() else None


def ways() -> list[list[tuple[str, ...]]]:
    """Commands that may install one, way by way: the system's packages where that is allowed, else Playwright's."""
    packages: list[tuple[str, ...]] = [
        (*APT, "update"),
        (*APT, "install", "-y", "--no-install-recommends", "chromium"),
    ]
    allowed = os.name == "posix" and os.geteuid() == 0 and shutil.which("apt-get") is not None
    own: list[tuple[str, ...]] = [(sys.executable, "-m", "playwright", "install", "chromium")]
    return [*([packages] if allowed else []), own]


def install() -> Path | None:
    """Try one way after the other until there is a browser."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for commands in ways():
        for command in commands:
            print("chromium:", " ".join(command), flush=True)
            done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
            if done.returncode:
                print(f"chromium: that did not work: {(done.stderr or done.stdout).strip()[-600:]}", file=sys.stderr)
                break
        if path := found():
            return path
    return None


def main() -> int:
    try:
        path = found() or install()
    except ValueError as error:
        print(f"chromium: {error}", file=sys.stderr)
        return 1
    if path is None:
        print(f"chromium: none was found, and none could be installed; {HELP}", file=sys.stderr)
        return 1
    print(f"chromium: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
