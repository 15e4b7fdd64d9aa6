"""Models with their tokenizers: labels in, images out; prompts in, texts out."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from recap.checkpoints.folder import read_config
from recap.models.registry import FAMILIES, build, family_of
from recap.pipelines.loading import Parts, blank_net, find_model, find_parts
from recap.pipelines.output import Output
from recap.pipelines.pipeline import Pipeline
from recap.pipelines.text import TextPipeline
from recap.pipelines.written import TextOutput


def load(
    model: str | Path, *, revision: str | None = None, local_files_only: bool = False, **options: Any
) -> Any:  # which of the two, the folder says
    """A pipeline of images or of text, from a folder, an embedded name or the hub; by their `from_pretrained`."""
    found = find_model(model, revision=revision, local_files_only=local_files_only)
    family = None if found is None else FAMILIES.get(read_config(found)["family"])
    kind: Any = TextPipeline if family is not None and family.modality == "text" else Pipeline
    return kind.from_pretrained(model if found is None else found, **options)


def pipeline_from(parts: Parts, name: object) -> Pipeline | TextPipeline:
    """The pipeline of parts that belong together, whatever they draw; `name` is for the error if they do not."""
    return (TextPipeline if family_of(parts.net).modality == "text" else Pipeline).from_parts(parts, name)


def blank(model: str | Path, *, shrink: bool = False) -> Pipeline | TextPipeline:
    """A pipeline without weights, of a folder or a published size."""
    return pipeline_from(find_parts(model, partial(build, meta=True), blank_net, shrink=shrink), model)


__all__ = ["Output", "Pipeline", "TextOutput", "TextPipeline", "load"]
