"""Weights that lie inside of other packages: found and checked, while the package itself is never imported."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path


def installed_file(package: str, file: str, sha256: str, *, what: str, extra: str, otherwise: str = "") -> Path:
    """A file of an installed package; `what` it is, the `extra` it comes with, and what else would do, for errors."""
    install = f'pip install "recap-mgm[{extra}]"'
    # the package is only looked up: to import it would pull in everything it depends on
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            f"{what} come with the package {package}, which is not installed; {install}{otherwise}"
        )
    path = Path(spec.submodule_search_locations[0]) / file
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; reinstall it with {install}")
    with path.open("rb") as content:
        found = hashlib.file_digest(content, "sha256").hexdigest()
    if found != sha256:
        raise ValueError(
            f"{path} has SHA-256 {found} but {sha256} is expected; "
            f"it is corrupt or of another version, reinstall it with {install}"
        )
    return path
