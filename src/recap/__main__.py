"""The command `recap`, also as `python -m recap`."""

from __future__ import annotations

import os
import signal
import sys

# how long threads wait before they sleep, in turns (GNU) and milliseconds (LLVM): long enough for the gap between two
# products, so that a quiet machine loses nothing, and too short to keep a core from others
WAITING = {"GOMP_SPINCOUNT": "10000", "KMP_BLOCKTIME": "1"}


def main() -> int:
    """Run a command; threads that wait soon leave their core to others, unless the environment says otherwise."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # while torch is imported there is nothing to tell of
    open_streams()
    if not any(name in os.environ for name in ("OMP_WAIT_POLICY", *WAITING)):
        os.environ.update(WAITING)  # read when torch is imported, which it is not yet
    from recap.cli import main as run

    return run(ready=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))


def open_streams() -> None:
    """Streams that were closed (`2>&-`) lead nowhere, or the next file that is opened would take their place."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115 - for as long as the process lives
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


if __name__ == "__main__":
    sys.exit(main())
