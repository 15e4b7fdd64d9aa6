"""`python -m recap` is the command `recap`."""

import sys

from recap.cli import main

if __name__ == "__main__":
    sys.exit(main())
