"""What a record says about the software behind it."""

from __future__ import annotations

import platform

import numpy as np
import PIL
import torch


def versions() -> dict[str, str]:
    """Versions of everything that images may hang on."""
    import recap

    return {
        "recap": recap.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "pillow": PIL.__version__,
    }
