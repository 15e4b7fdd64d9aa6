"""The names of the package itself; `recap` brings them when one of them is first asked for."""

from recap.checkpoints import CheckpointError
from recap.core.decode import grouped_decode
from recap.core.options import SamplingOptions
from recap.core.presets import preset
from recap.core.schedule import Ramp, Schedule, cosine, from_counts
from recap.core.selection import ConfidenceOrder, FixedOrder, RandomOrder
from recap.models.adapter import Adapter
from recap.models.described import Description
from recap.models.registry import wrap
from recap.pipelines import Output, Pipeline, TextOutput, TextPipeline, load
from recap.tokenizers import BPE, KLVAE, VQGAN
from recap.verification import verify
from recap.view.frames import Frame
from recap.view.images import fit

__all__ = [
    "BPE",
    "KLVAE",
    "VQGAN",
    "Adapter",
    "CheckpointError",
    "ConfidenceOrder",
    "Description",
    "FixedOrder",
    "Frame",
    "Output",
    "Pipeline",
    "Ramp",
    "RandomOrder",
    "SamplingOptions",
    "Schedule",
    "TextOutput",
    "TextPipeline",
    "cosine",
    "fit",
    "from_counts",
    "grouped_decode",
    "load",
    "preset",
    "verify",
    "wrap",
]
