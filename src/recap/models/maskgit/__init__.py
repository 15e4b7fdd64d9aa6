from recap.models.maskgit.adapter import MaskGITAdapter
from recap.models.maskgit.config import MaskGITConfig
from recap.models.maskgit.family import FAMILY
from recap.models.maskgit.net import MaskGIT

__all__ = ["FAMILY", "MaskGIT", "MaskGITAdapter", "MaskGITConfig"]
