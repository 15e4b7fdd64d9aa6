"""A command whose streams are closed, or that is interrupted before it has begun."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from recap.cli import main

RECAP = [sys.executable, "-m", "recap"]
PLAN = ["plan", "--model", "mar-large", "--full"]


@pytest.mark.parametrize(("full", "status"), [("8", 0), ("0", 2)])
@pytest.mark.parametrize("closed", ["2>&-", ">&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_error(full: str, status: int, closed: str) -> None:
    done = subprocess.run(["sh", "-c", f'"$@" {closed}', "sh", *RECAP, *PLAN, full], capture_output=True, check=False)
    assert done.returncode == status
    assert b"Error" not in done.stdout + done.stderr
    assert bool(done.stdout) == (status == 0 and ">&-" not in closed.split())
    assert bool(done.stderr) == (status == 2 and "2>&-" not in closed.split())


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="asks Linux what a process has loaded")
def test_an_interrupt_while_modules_are_imported_says_nothing() -> None:
    running = subprocess.Popen([*RECAP, "models"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while "libtorch" not in Path(f"/proc/{running.pid}/maps").read_text():
        assert running.poll() is None
        time.sleep(0.005)
    running.send_signal(signal.SIGINT)
    assert running.communicate() == (b"", b"")
    assert running.returncode == -signal.SIGINT


def test_an_interrupt_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("recap.cli.plan.run", interrupted)
    assert main([*PLAN, "8"]) == 130
    assert capsys.readouterr().err == "recap plan: interrupted\n"
