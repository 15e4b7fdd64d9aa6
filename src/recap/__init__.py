"""ReCAP: masked generative models made fast by reusing context features, with no retraining."""

from recap.checkpoints import CheckpointError, load_official, load_pretrained, save_pretrained
from recap.contract import verify
from recap.core.canvas import Known
from recap.core.decode import grouped_decode
from recap.core.noise import Noise, image_generators
from recap.core.presets import published
from recap.core.schedule import Group, Ramp, Schedule, Step, cosine, from_counts, from_ratios, linear, power
from recap.core.selection import CentreOut, ConfidenceOrder, FixedOrder, RandomOrder, RasterOrder
from recap.editing import Edited
from recap.images import fit
from recap.models.mage import MAGE, MAGEAdapter, MAGEConfig
from recap.models.mar import MAR, MARAdapter, MARConfig
from recap.models.maskgit import MaskGIT, MaskGITAdapter, MaskGITConfig
from recap.pipeline import Output, Pipeline, load
from recap.planning import plan
from recap.tokenizers import KLVAE, VQGAN, KLVAEConfig, VQGANConfig

__version__ = "0.1.0"

__all__ = [
    "KLVAE",
    "MAGE",
    "MAR",
    "VQGAN",
    "CentreOut",
    "CheckpointError",
    "ConfidenceOrder",
    "Edited",
    "FixedOrder",
    "Group",
    "KLVAEConfig",
    "Known",
    "MAGEAdapter",
    "MAGEConfig",
    "MARAdapter",
    "MARConfig",
    "MaskGIT",
    "MaskGITAdapter",
    "MaskGITConfig",
    "Noise",
    "Output",
    "Pipeline",
    "Ramp",
    "RandomOrder",
    "RasterOrder",
    "Schedule",
    "Step",
    "VQGANConfig",
    "cosine",
    "fit",
    "from_counts",
    "from_ratios",
    "grouped_decode",
    "image_generators",
    "linear",
    "load",
    "load_official",
    "load_pretrained",
    "plan",
    "power",
    "published",
    "save_pretrained",
    "verify",
]
