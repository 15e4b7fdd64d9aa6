"""The command `recap`, also as `python -m recap`."""

from __future__ import annotations

import os
import sys

# how long threads wait before they sleep, in turns (GNU) and milliseconds (LLVM): long enough for the gap between two
# products, so that a quiet machine loses nothing, and too short to keep a core from others
WAITING = {"GOMP_SPINCOUNT": "10000", "KMP_BLOCKTIME": "1"}


def main() -> int:
    """Run a command; threads that wait soon leave their core to others, unless the environment says otherwise."""
    if not any(name in os.environ for name in ("OMP_WAIT_POLICY", *WAITING)):
        os.environ.update(WAITING)  # read when torch is imported, which it is not yet
    from recap.cli import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
