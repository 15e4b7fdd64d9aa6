from recap.models.mar.adapter import MARAdapter
from recap.models.mar.config import MARConfig
from recap.models.mar.family import FAMILY
from recap.models.mar.net import MAR

__all__ = ["FAMILY", "MAR", "MARAdapter", "MARConfig"]
