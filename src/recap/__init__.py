"""ReCAP: masked generative models made fast by reusing context features, with no retraining."""

from recap.antibodies import AntiBERTy
from recap.checkpoints import CheckpointError, load_official, load_pretrained, save_pretrained
from recap.contract import Law, Report, verify
from recap.core.cache import ContextCache, Rows
from recap.core.canvas import Canvas, Known
from recap.core.decode import grouped_decode
from recap.core.heads import CategoricalHead
from recap.core.noise import Noise, image_generators
from recap.core.presets import published
from recap.core.schedule import Group, Ramp, Schedule, Step, cosine, from_counts, from_ratios, linear, power
from recap.core.selection import CentreOut, ConfidenceOrder, FixedOrder, RandomOrder, RasterOrder
from recap.editing import Edited
from recap.filling import fill
from recap.frames import Cell, Frame
from recap.images import fit
from recap.models.accelerate import accelerate
from recap.models.adapter import Adapter
from recap.models.described import DescribedAdapter, Description, Rotary
from recap.models.mage import MAGE, MAGEAdapter, MAGEConfig
from recap.models.mar import MAR, MARAdapter, MARConfig
from recap.models.masked_lm import MaskedLMAdapter
from recap.models.maskgit import MaskGIT, MaskGITAdapter, MaskGITConfig
from recap.models.sizes import Sizes
from recap.pipeline import Output, Pipeline, load
from recap.planning import plan
from recap.tokenizers import KLVAE, VQGAN, KLVAEConfig, VQGANConfig

__version__ = "0.1.0"

__all__ = [
    "KLVAE",
    "MAGE",
    "MAR",
    "VQGAN",
    "Adapter",
    "AntiBERTy",
    "Canvas",
    "CategoricalHead",
    "Cell",
    "CentreOut",
    "CheckpointError",
    "ConfidenceOrder",
    "ContextCache",
    "DescribedAdapter",
    "Description",
    "Edited",
    "FixedOrder",
    "Frame",
    "Group",
    "KLVAEConfig",
    "Known",
    "Law",
    "MAGEAdapter",
    "MAGEConfig",
    "MARAdapter",
    "MARConfig",
    "MaskGIT",
    "MaskGITAdapter",
    "MaskGITConfig",
    "MaskedLMAdapter",
    "Noise",
    "Output",
    "Pipeline",
    "Ramp",
    "RandomOrder",
    "RasterOrder",
    "Report",
    "Rotary",
    "Rows",
    "Schedule",
    "Sizes",
    "Step",
    "VQGANConfig",
    "accelerate",
    "cosine",
    "fill",
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
