"""The command `recap`, also as `python -m recap`."""

from __future__ import annotations

import os
import sys

WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def main() -> int:
    """Run a command; threads that wait leave their core to others, unless the environment says otherwise."""
    if not any(name in os.environ for name in WAITING):
        os.environ["OMP_WAIT_POLICY"] = "passive"  # read when torch is imported, which it is not yet
    from recap.cli import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
