"""Readers of pages, and the small networks that they have."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT
from tests.docs.session import Session
from tests.docs.smaller import write_models

REAL = ("docs/quickstart.md",)  # its Python has the weights that come with the package, since everybody begins here
Reading = Callable[[Path], Session]


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of small networks under the names of the models inside."""
    folder = tmp_path_factory.mktemp("models")
    write_models(folder)
    return folder


@pytest.fixture(scope="session")
def reading(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Reading:
    """The reader of a page, who goes on where he was."""

    @cache
    def reader(page: Path) -> Session:
        real = page.relative_to(ROOT).as_posix() in REAL
        return Session(page, tmp_path_factory.mktemp(page.stem), home, real)

    return reader
