"""What can be wrong with a checkpoint."""


class CheckpointError(ValueError):
    """A file or folder that cannot be read as the model it was taken for."""
