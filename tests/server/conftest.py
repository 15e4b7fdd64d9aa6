"""A studio with small models, a browser, and visitors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.server.browsing import Visitor


@pytest.fixture(scope="module")  # not for the session: no other event loop can run in this thread meanwhile
def browser() -> Iterator[Browser]:
    from tests.server.browsing import launched

    with launched() as browser:
        yield browser


@pytest.fixture(scope="module")
def small_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    from tests.server.browsing import folders

    return folders(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def address(browser: Browser, small_models: dict[str, Path]) -> Iterator[str]:
    """Of a studio in a process of its own, with a quick model, a slow one, and those of the package."""
    from tests.server.served import process

    options = [word for folder in small_models.values() for word in ("--model", str(folder))]
    with process("studio", *options) as (running, address):
        yield address
        ended = running.poll()
        assert ended is None, f"the studio ended with {ended}: {running.communicate(timeout=10)[1]}"


@pytest.fixture
def visit(browser: Browser, address: str) -> Iterator[Callable[..., Visitor]]:
    """Opens the page for one more visitor; all of them leave in good order."""
    from tests.server.browsing import Visitor

    here: list[Visitor] = []

    def enter(view: str = "generate", **options: Any) -> Visitor:
        here.append(Visitor(browser, address, view, **options))
        return here[-1]

    yield enter
    for visitor in here:
        visitor.leave()
