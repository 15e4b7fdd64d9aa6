"""`recap studio` as a process: what it prints, visitors who leave, signals, and bad arguments."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="fastapi is not installed; the extra demo brings it")
pytest.importorskip("uvicorn", reason="uvicorn is not installed; the extra demo brings it")

import httpx

from recap.cli import main
from recap.cli.studio import offered
from recap.weights import embedded
from tests.serving.served import few

SLOW: dict[str, Any] = {"labels": [1], "num": 4, "full": 16, "local": 0}  # takes many seconds
QUICK: dict[str, Any] = {"labels": [1], "full": 1, "local": 0}


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pipe = few("mar")
    pipe.sampling = type(pipe.sampling)("mar", full=6, local=4, head_steps=(80, 80))
    return pipe.save_pretrained(tmp_path_factory.mktemp("models") / "slow")


@contextmanager
def process(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The studio in a process of its own, and its address, which answers as soon as it is printed."""
    command = [sys.executable, "-m", "recap", "studio", "--port", "0", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    running = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert running.stdout is not None
        line = running.stdout.readline()
        found = re.search(r"open (http://127\.0\.0\.1:\d+)$", line)
        assert found, line + (running.communicate(timeout=10)[1] if running.poll() is not None else "")
        yield running, found[1]
    finally:
        if running.poll() is None:
            running.kill()
        running.communicate(timeout=30)


def test_visitors_leave_and_signals_end_it(slow: Path) -> None:
    """One process for all of it: starting one takes seconds."""
    with process("--model", str(slow)) as (running, address), httpx.Client(base_url=address, timeout=60) as client:
        assert client.get("/api/models").json()["default"] == "slow"
        plan = client.post("/api/plan", json={"full": 4, "local": 2}).json()
        assert plan["seconds"]["reused"] > 0  # it has drawn before it listened
        with client.stream("POST", "/api/generate", json=SLOW) as stream:
            lines = stream.iter_lines()
            assert [json.loads(next(lines))["event"] for _ in range(2)] == ["started", "frame"]
        after = client.post("/api/generate", json=QUICK)
        events = [json.loads(line) for line in after.text.splitlines()]
        assert events[-1]["event"] == "done"
        with client.stream("POST", "/api/generate", json=SLOW) as stream:
            lines = stream.iter_lines()
            next(lines)
            began = time.monotonic()
            running.send_signal(signal.SIGTERM)
            last = [json.loads(line) for line in lines][-1]
            assert last["code"] == "closing"
        assert running.wait(30) == 0
        assert time.monotonic() - began < 5
        assert running.stderr is not None
        assert running.stderr.read() == ""


def test_models_are_named_by_their_folders(slow: Path, tmp_path: Path) -> None:
    other = few("maskgit").save_pretrained(tmp_path / "slow")
    found = offered([str(slow), str(other), "flowers-mar", str(slow)])
    assert list(found) == ["slow", "slow-2", "flowers-mar", *[name for name in embedded() if name != "flowers-mar"]]
    assert list(offered([])) == embedded()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--port", "70000"], "cannot listen on port 70000"),
        (["--host", "no.such.host.invalid"], "cannot listen on no.such.host.invalid"),
        (["--queue", "0"], "--queue is 0"),
        (["--max-steps", "8"], "--max-steps is 8 but flowers-maskgit's own schedule has 64"),
        (["--model", "flowers-margit"], "no model is called 'flowers-margit'"),
        (["--model", "mar-large"], "published size whose weights do not come with the package"),
        (["--device", "abacus"], "device 'abacus' cannot be used"),
    ],
)
def test_bad_arguments_are_said_in_a_line(capsys: pytest.CaptureFixture[str], more: list[str], message: str) -> None:
    assert main(["studio", "--port", "0", *more]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    lines = [line for line in err.splitlines() if "warning" not in line]
    assert len(lines) == 1
    assert message in lines[0]


def test_a_model_without_a_tokenizer_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few("mar").save_pretrained(tmp_path / "m")
    (tmp_path / "m" / "tokenizer" / "config.json").unlink()
    assert main(["studio", "--port", "0", "--model", str(tmp_path / "m")]) == 2
    assert "m has no tokenizer to make images with" in capsys.readouterr().err


def test_a_taken_port_is_said_before_a_model_is_loaded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recap.cli.studio.offered", lambda _: pytest.fail("models were looked at"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["studio", "--port", str(taken.getsockname()[1])]) == 2
    assert "cannot listen on 127.0.0.1" in capsys.readouterr().err


def test_open_doors_are_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    for host, warned in (("0.0.0.0", True), ("127.0.0.1", False)):
        assert main(["studio", "--port", "0", "--host", host, "--model", "nothing"]) == 2
        assert ("can be reached from elsewhere" in capsys.readouterr().err) is warned


def test_without_the_extra_it_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["studio"]) == 2
    err = capsys.readouterr().err
    assert 'pip install "recap-mgm[demo]"' in err
    assert err.count("\n") == 1
