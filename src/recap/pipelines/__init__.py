"""Models with their tokenizers: labels in, images out."""

from recap.pipelines.output import Output
from recap.pipelines.pipeline import Pipeline, load

__all__ = ["Output", "Pipeline", "load"]
