"""Model folders from the Hugging Face hub, by the extra `hub`; nothing is fetched that could run."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

from recap.checkpoints.folder import CONFIG
from recap.checkpoints.rewrite import COMPANIONS
from recap.checkpoints.safe_files import CheckpointError
from recap.checkpoints.shards import INDEX, WEIGHTS

NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
BESIDE = (f"tokenizer/{CONFIG}", f"tokenizer/{WEIGHTS}")  # a tokenizer of images
FILES = (CONFIG, WEIGHTS, INDEX, "model-*-of-*.safetensors", *COMPANIONS, *BESIDE)


def is_name(model: str | Path) -> bool:
    """Whether `model` can only be meant as "owner/name": a text with one slash, and no such folder."""
    return isinstance(model, str) and NAME.fullmatch(model) is not None and not Path(model).exists()


def snapshot(name: str, *, revision: str | None = None, local_files_only: bool = False) -> Path:
    """The folder on disk with the files of `name`, fetched unless they are there already."""
    try:
        client: Any = importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise CheckpointError(
            f"no folder {name} exists; if a model of the hub is meant, install what fetches it: "
            f'pip install "recap-mgm[hub]"'
        ) from error
    try:
        folder = client.snapshot_download(
            name, revision=revision, local_files_only=local_files_only, allow_patterns=list(FILES)
        )
    except (OSError, ValueError) as error:  # of the network, the hub, the cache or the name
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        advice = "check the name and the connection (or whether HF_HUB_OFFLINE is set), or give a folder"
        if local_files_only:
            advice = "only files that were downloaded before may be used; leave out local_files_only once"
        raise CheckpointError(
            f"no folder {name} exists, and the hub's {name} could not be had ({reason}); {advice}"
        ) from error
    return Path(folder)
