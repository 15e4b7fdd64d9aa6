"""Model folders from the Hugging Face hub, by the extra `hub`; nothing is fetched that could run."""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path
from typing import Any

from recap.checkpoints.folder import CONFIG, WEIGHTS
from recap.checkpoints.safe_files import CheckpointError

NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
FILES = (CONFIG, WEIGHTS, f"tokenizer/{CONFIG}", f"tokenizer/{WEIGHTS}")
YES = ("1", "on", "true", "yes")


def is_name(model: str | Path) -> bool:
    """Whether `model` can only be meant as "owner/name": a text with one slash, and no such folder."""
    return isinstance(model, str) and NAME.fullmatch(model) is not None and not Path(model).exists()


def offline() -> bool:
    """Whether the environment says HF_HUB_OFFLINE."""
    return os.environ.get("HF_HUB_OFFLINE", "").strip().lower() in YES


def snapshot(name: str, *, revision: str | None = None, local_files_only: bool = False) -> Path:
    """The folder on disk with the files of `name`, fetched unless they are there already."""
    local = local_files_only or offline()
    try:
        client: Any = importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise CheckpointError(
            f"no folder {name} exists; if a model of the hub is meant, install what fetches it: "
            f'pip install "recap-mgm[hub]"'
        ) from error
    try:
        folder = client.snapshot_download(name, revision=revision, local_files_only=local, allow_patterns=list(FILES))
    except (OSError, ValueError) as error:  # of the network, the hub, the cache or the name
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        advice = (
            "only files that were downloaded before may be used; leave out local_files_only and HF_HUB_OFFLINE once"
            if local
            else "check the name and the connection, or give a folder"
        )
        raise CheckpointError(
            f"no folder {name} exists, and the hub's {name} could not be had ({reason}); {advice}"
        ) from error
    return Path(folder)
