from recap.models.mage.adapter import MAGEAdapter
from recap.models.mage.config import MAGEConfig
from recap.models.mage.family import FAMILY
from recap.models.mage.net import MAGE

__all__ = ["FAMILY", "MAGE", "MAGEAdapter", "MAGEConfig"]
