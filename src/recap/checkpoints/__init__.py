"""Reading and writing models."""

from recap.checkpoints.folder import load_pretrained, save_pretrained
from recap.checkpoints.official import load_official, read_official
from recap.checkpoints.safe_files import CheckpointError

__all__ = ["CheckpointError", "load_official", "load_pretrained", "read_official", "save_pretrained"]
