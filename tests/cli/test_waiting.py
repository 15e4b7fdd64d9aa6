"""Threads of commands soon sleep when they wait, unless the environment says otherwise; imports change nothing."""

import os
import subprocess
import sys

import pytest

from recap.__main__ import WAITING

VARIABLES = ("OMP_WAIT_POLICY", *WAITING)

COMMAND = """
import os, sys
sys.argv = ["recap", "models"]
from recap.__main__ import main
assert "torch" not in sys.modules  # which reads the policy when it is imported
assert main() == 0
print(os.environ.get("GOMP_SPINCOUNT"))
"""
IMPORT = """
import os, sys, recap
assert "torch" not in sys.modules
recap.Pipeline
assert "torch" in sys.modules
print(os.environ.get("GOMP_SPINCOUNT"))
"""


@pytest.mark.parametrize(
    ("code", "given", "turns"),
    [
        (COMMAND, {}, WAITING["GOMP_SPINCOUNT"]),
        (COMMAND, {"OMP_WAIT_POLICY": "active"}, "None"),
        (COMMAND, {"GOMP_SPINCOUNT": "1000"}, "1000"),
        (COMMAND, {"KMP_BLOCKTIME": "0"}, "None"),
        (IMPORT, {}, "None"),
    ],
)
def test_commands_leave_their_cores_to_others(code: str, given: dict[str, str], turns: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment | given, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == turns
