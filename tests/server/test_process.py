"""`recap serve` and `recap studio` as processes: clients that leave, signals, and what is said at the start."""

import json
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import pytest

pytest.importorskip("fastapi", reason="fastapi is not installed; the extra serve brings it")
pytest.importorskip("uvicorn", reason="uvicorn is not installed; the extra serve brings it")

from recap.cli import main
from tests.server.served import by_command, few, metric, pngs, process, slow, until

Capture: TypeAlias = pytest.CaptureFixture[str]
SLOW: dict[str, Any] = {"labels": 1, "num": 16, "full": 16}  # thousands of steps of a diffusion head
LONG: dict[str, Any] = {"labels": [1], "num": 4, "full": 16, "local": 0}  # likewise, for a visitor of the page


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    few("maskgit").save_pretrained(folder / "quick")
    slow(300).save_pretrained(folder / "slow")
    return folder


def metrics(address: str) -> str:
    return httpx.get(f"{address}/metrics", timeout=30).text


def test_many_clients_get_the_images_of_the_command_line(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    argv = ["sample", "--model", str(models / "quick"), "--labels", "3,1", "--num", "24", "--seed", "7"]
    written = by_command(*argv)

    def ask(index: int) -> tuple[int, httpx.Response]:
        body = {"labels": [3, 1], "seed": 7, "first": index % 24, "num": 1, "format": "png"}
        return index % 24, client.post(f"{address}/v1/sample", json=body)

    options = ("--model", str(models / "quick"), "--queue", "8", "--max-images", "8")
    with process("serve", *options) as (_, address), httpx.Client(timeout=60) as client:
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
    with process("serve", "--model", str(models / "slow")) as (_, address):
        with pytest.raises(httpx.TimeoutException):
            httpx.post(f"{address}/v1/sample", json=SLOW, timeout=httpx.Timeout(30, read=0.5))
        until(lambda: metric(metrics(address), 'recap_requests_total{endpoint="/v1/sample",status="499"}') == 1)
        until(lambda: metric(metrics(address), "recap_running_images") == 0)
        text = metrics(address)
        assert metric(text, "recap_queue_images") == 0
        assert metric(text, "recap_images_total") < 16
        assert metric(text, "recap_images_dropped_total") >= 1


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_accepted_work_finish(models: Path, sent: signal.Signals) -> None:
    body = {"labels": 1, "num": 2, "full": 8}
    options = ("--model", str(models / "slow"), "--grace", "100")
    with process("serve", *options) as (running, address), ThreadPoolExecutor() as pool:
        asking = pool.submit(httpx.post, f"{address}/v1/sample", json=body, timeout=120)
        until(lambda: metric(metrics(address), "recap_running_images") > 0)
        running.send_signal(sent)
        assert all(picture.startswith(b"\x89PNG") for picture in pngs(asking.result()))
        assert running.wait(60) == 0
        assert running.stderr is not None
        assert "Traceback" not in running.stderr.read()
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{address}/healthz")


def test_what_cannot_be_finished_in_time_is_returned(models: Path) -> None:
    options = ("--model", str(models / "slow"), "--grace", "0.2")
    with process("serve", *options) as (running, address), ThreadPoolExecutor() as pool:
        asking = pool.submit(httpx.post, f"{address}/v1/sample", json=SLOW, timeout=120)
        until(lambda: metric(metrics(address), "recap_running_images") > 0)
        running.send_signal(signal.SIGTERM)
        answer = asking.result()
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "closing")
        assert int(answer.headers["retry-after"]) >= 1
        assert running.wait(60) == 0


def test_visitors_of_the_page_leave_and_a_signal_ends_it_soon(models: Path) -> None:
    """One process for all of it: starting one takes seconds."""
    with (
        process("studio", "--model", str(models / "slow")) as (running, address),
        httpx.Client(base_url=address, timeout=60) as client,
    ):
        assert client.get("/v1/models").json()["default"] == "slow"
        assert client.get("/").text.startswith("<!doctype html>")
        with client.stream("POST", "/api/compare", json=LONG) as stream:
            lines = stream.iter_lines()
            assert [json.loads(next(lines))["event"] for _ in range(2)] == ["started", "frame"]
        after = client.post("/api/compare", json={"labels": [1], "full": 1, "local": 0})
        events = [json.loads(line) for line in after.text.splitlines()]
        assert events[-1]["event"] == "done"
        with client.stream("POST", "/api/compare", json=LONG) as stream:
            lines = stream.iter_lines()
            next(lines)
            began = time.monotonic()
            running.send_signal(signal.SIGTERM)
            last = [json.loads(line) for line in lines][-1]
            assert last["code"] == "closing"
        assert running.wait(30) == 0
        assert time.monotonic() - began < 10
        assert running.stderr is not None
        assert running.stderr.read() == ""


def test_tokens_come_from_the_environment(models: Path) -> None:
    options = [word for name in ("quick", "slow") for word in ("--model", str(models / name))]
    with process("serve", *options, token=" s3cret\n") as (_, address):  # as a file or an editor leaves it
        assert httpx.get(f"{address}/v1/models").status_code == 401
        assert httpx.get(f"{address}/").status_code == 401  # and there is no page
        headers = {"Authorization": "Bearer s3cret"}
        assert httpx.get(f"{address}/", headers=headers).status_code == 404
        served = httpx.get(f"{address}/v1/models", headers=headers).json()["models"]
        assert [model["name"] for model in served] == ["quick", "slow"]


@pytest.mark.parametrize("command", ["serve", "studio"])
def test_a_taken_port_is_said_in_a_line_before_a_model_is_read(
    command: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recap.cli.serve.loaded", lambda *_: pytest.fail("models were looked at"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main([command, "--port", str(taken.getsockname()[1])]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "cannot listen on 127.0.0.1" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["serve", "--batch", "0"], "--batch is 0"),
        (["serve", "--queue", "3"], "--max-images is 16 but only 3 may wait"),
        (["serve", "--port", "70000"], "cannot listen on port 70000"),
        (["studio", "--host", "no.such.host.invalid"], "cannot listen on no.such.host.invalid"),
        (["studio", "--queue", "0"], "--queue is 0"),
        (["studio", "--model", "flowers-margit"], "no model is called 'flowers-margit'"),
        (["studio", "--model", "flowers-mar", "--tiny"], "flowers-mar is a folder with a size of its own"),
        (["studio", "--device", "abacus"], "device 'abacus' cannot be used"),
    ],
)
def test_bad_arguments_are_said_in_a_line(capsys: Capture, argv: list[str], message: str) -> None:
    command, *more = argv
    assert main([command, "--port", "0", *more]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    lines = [line for line in err.splitlines() if "warning" not in line]
    assert len(lines) == 1
    assert message in lines[0]


DOORS = [
    ("serve", "0.0.0.0", None, True),
    ("serve", "0.0.0.0", "x", False),
    ("serve", "127.0.0.1", None, False),
    ("studio", "0.0.0.0", "x", True),  # which the page does not ask for
    ("studio", "127.0.0.1", "x", False),
]


@pytest.mark.parametrize(("command", "host", "token", "warned"), DOORS)
def test_open_doors_are_warned_of(capsys: Capture, command: str, host: str, token: str | None, warned: bool) -> None:
    """The warning comes before anything is bound, so a model that is not there is enough."""
    with pytest.MonkeyPatch.context() as patch:
        if token is not None:
            patch.setenv("RECAP_TOKEN", token)
        assert main([command, "--port", "0", "--model", "nothing", "--host", host]) == 2
    assert ("can be reached from elsewhere" in capsys.readouterr().err) is warned


def test_an_empty_token_is_refused(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECAP_TOKEN", " ")
    assert main(["serve"]) == 2
    assert "RECAP_TOKEN is set but empty" in capsys.readouterr().err


@pytest.mark.parametrize(("command", "extra"), [("serve", "serve"), ("studio", "demo")])
def test_without_the_extra_it_says_what_to_install(
    command: str, extra: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main([command]) == 2
    err = capsys.readouterr().err
    assert f'pip install "recap-mgm[{extra}]"' in err
    assert err.count("\n") == 1
