"""Reading and writing models."""

from recap.checkpoints.errors import CheckpointError
from recap.checkpoints.folder import load_pretrained, save_pretrained
from recap.checkpoints.official import load_official, read_official

__all__ = ["CheckpointError", "load_official", "load_pretrained", "read_official", "save_pretrained"]
