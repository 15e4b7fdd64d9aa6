"""`recap serve` as a process: clients that leave, signals, and what it says when it cannot start."""

import base64
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="fastapi is not installed; the extra serve brings it")
pytest.importorskip("uvicorn", reason="uvicorn is not installed; the extra serve brings it")

import httpx

from recap.cli import main
from recap.serving.server import bound
from tests.serving.served import few, metric, process, until

SLOW: dict[str, Any] = {"labels": 1, "num": 16, "full": 16}  # thousands of steps of a diffusion head


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    few("maskgit").save_pretrained(folder / "quick")
    slow = few("mar")
    slow.sampling = type(slow.sampling)("mar", full=6, local=4, head_steps=(300, 300))
    slow.save_pretrained(folder / "slow")
    return folder


def metrics(address: str) -> str:
    return httpx.get(f"{address}/metrics", timeout=30).text


def test_many_clients_get_the_images_of_the_command_line(models: Path, tmp_path: Path) -> None:
    argv = [
        "sample",
        "--model",
        str(models / "quick"),
        "--labels",
        "3,1",
        "--num",
        "24",
        "--batch",
        "1",
        "--seed",
        "7",
    ]
    assert main([*argv, "--out", str(tmp_path)]) == 0
    written = [path.read_bytes() for path in sorted(tmp_path.glob("0*.png"))]

    def ask(index: int) -> tuple[int, httpx.Response]:
        body = {"labels": [3, 1], "seed": 7, "first": index % 24, "num": 1}
        return index % 24, client.post(f"{address}/v1/sample", json=body, headers={"Accept": "image/png"})

    limits = ("--queue", "8", "--max-images", "8")
    with process(models / "quick", *limits) as (_, address), httpx.Client(timeout=60) as client:
        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(ask, range(48)))
        text = metrics(address)
    assert {answer.status_code for _, answer in answers} <= {200, 429}
    accepted = [(index, answer.content) for index, answer in answers if answer.status_code == 200]
    assert len(accepted) >= 8
    assert all(content == written[index] for index, content in accepted)
    assert metric(text, "recap_images_total") == len(accepted)
    assert metric(text, "recap_queue_images") == metric(text, "recap_running_images") == 0


def test_clients_that_leave_are_forgotten(models: Path) -> None:
    with process(models / "slow") as (_, address):
        with pytest.raises(httpx.TimeoutException):
            httpx.post(f"{address}/v1/sample", json=SLOW, timeout=httpx.Timeout(30, read=0.5))
        until(lambda: metric(metrics(address), 'recap_requests_total{endpoint="/v1/sample",outcome="left"}') == 1)
        until(lambda: metric(metrics(address), "recap_running_images") == 0)
        text = metrics(address)
        assert metric(text, "recap_queue_images") == 0
        assert metric(text, "recap_images_total") < 16
        assert metric(text, "recap_images_dropped_total") >= 1


def in_thread(address: str, body: dict[str, Any]) -> tuple[threading.Thread, list[httpx.Response]]:
    answers: list[httpx.Response] = []
    thread = threading.Thread(
        target=lambda: answers.append(httpx.post(f"{address}/v1/sample", json=body, timeout=120)), daemon=True
    )
    thread.start()
    return thread, answers


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_accepted_work_finish(models: Path, sent: signal.Signals) -> None:
    body = {"labels": 1, "num": 2, "full": 8}
    with process(models / "slow", "--grace", "100") as (running, address):
        thread, answers = in_thread(address, body)
        until(lambda: metric(metrics(address), "recap_running_images") > 0)
        running.send_signal(sent)
        thread.join(120)
        assert running.wait(60) == 0
        assert [answer.status_code for answer in answers] == [200]
        pictures = [base64.b64decode(image["png"]) for image in answers[0].json()["images"]]
        assert all(picture.startswith(b"\x89PNG") for picture in pictures)
        assert running.stderr is not None
        assert "Traceback" not in running.stderr.read()
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{address}/healthz")


def test_what_cannot_be_finished_in_time_is_returned(models: Path) -> None:
    with process(models / "slow", "--grace", "0.2") as (running, address):
        thread, answers = in_thread(address, SLOW)
        until(lambda: metric(metrics(address), "recap_running_images") > 0)
        running.send_signal(signal.SIGTERM)
        thread.join(60)
        assert running.wait(60) == 0
        assert [answer.status_code for answer in answers] == [503]
        assert answers[0].json()["error"]["code"] == "closing"
        assert int(answers[0].headers["retry-after"]) >= 1


def test_tokens_come_from_the_environment(models: Path) -> None:
    with process(models / "quick", token="s3cret") as (_, address):
        assert httpx.get(f"{address}/v1/models").status_code == 401
        headers = {"Authorization": "Bearer s3cret"}
        assert httpx.get(f"{address}/v1/models", headers=headers).json()["models"][0]["name"] == "quick"


def test_a_taken_port_is_said_in_a_line(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["serve", "--model", str(models / "quick"), "--port", str(taken.getsockname()[1])]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "cannot listen on 127.0.0.1" in err
    assert err.count("\n") == 1


def test_bad_arguments_are_said_in_a_line(
    models: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ["serve", "--model", str(models / "quick")]
    for more, message in (
        (["--batch", "0"], "--batch is 0"),
        (["--queue", "3"], "--max-images is 16 but only 3 may wait"),
        (["--max-steps", "9"], "--max-steps is 9"),
        (["--port", "70000"], "cannot listen"),
    ):
        assert main([*model, *more]) == 2
        assert message in capsys.readouterr().err
    monkeypatch.setenv("RECAP_TOKEN", " ")
    assert main(model) == 2
    assert "RECAP_TOKEN is set but empty" in capsys.readouterr().err


@pytest.mark.parametrize(("host", "token", "warned"), [("0.0.0.0", None, True), ("0.0.0.0", "x", False)])
def test_open_doors_are_warned_of(
    models: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    host: str,
    token: str | None,
    warned: bool,
) -> None:
    """The warning comes before anything is bound, so a model that is not there is enough."""
    if token is not None:
        monkeypatch.setenv("RECAP_TOKEN", token)
    assert main(["serve", "--model", str(models / "nothing"), "--host", host]) == 2
    assert ("can be reached from elsewhere" in capsys.readouterr().err) is warned


def test_without_the_extra_it_says_what_to_install(
    models: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["serve", "--model", str(models / "quick")]) == 2
    assert 'pip install "recap-mgm[serve]"' in capsys.readouterr().err


def test_the_command_is_listed() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "recap", "serve", "--help"], capture_output=True, text=True, check=True
    )
    for option in ("--batch", "--queue", "--timeout", "--grace", "--host", "--max-images"):
        assert option in done.stdout


def test_whoever_comes_once_the_address_is_known_is_let_in() -> None:
    with bound("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname(), timeout=5):
        pass
