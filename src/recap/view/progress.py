"""Progress bars: of widgets in a notebook that has them, of text elsewhere."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # that a notebook has no widgets is no reason to warn whoever imports this
    from tqdm.auto import tqdm

__all__ = ["tqdm"]
