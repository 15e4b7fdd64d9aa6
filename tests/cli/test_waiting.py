"""Threads of commands wait without spinning, unless the environment says how they wait; imports change nothing."""

import os
import subprocess
import sys

import pytest

from recap.__main__ import WAITING

COMMAND = """
import os, sys
sys.argv = ["recap", "models"]
from recap.__main__ import main
assert "torch" not in sys.modules  # which reads the policy when it is imported
assert main() == 0
print(os.environ.get("OMP_WAIT_POLICY"))
"""
IMPORT = """
import os, sys, recap
assert "torch" not in sys.modules
recap.Pipeline
assert "torch" in sys.modules
print(os.environ.get("OMP_WAIT_POLICY"))
"""


@pytest.mark.parametrize(
    ("code", "given", "policy"),
    [
        (COMMAND, {}, "passive"),
        (COMMAND, {"OMP_WAIT_POLICY": "active"}, "active"),
        (COMMAND, {"GOMP_SPINCOUNT": "1000"}, "None"),
        (COMMAND, {"KMP_BLOCKTIME": "0"}, "None"),
        (IMPORT, {}, "None"),
    ],
)
def test_commands_wait_passively(code: str, given: dict[str, str], policy: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in WAITING}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment | given, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == policy
