"""Clients that mean harm: whatever they do, others are answered soon, memory stays, and a signal ends the server."""

import base64
import io
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from PIL import Image

pytest.importorskip("fastapi", reason="fastapi is not installed; the extra serve brings it")
pytest.importorskip("uvicorn", reason="uvicorn is not installed; the extra serve brings it")

from tests.server.served import few, process, until

FILES = 256  # that a server under attack may open: 160 connections
SOON = 2.0  # seconds for headers, and for answers to be taken
OPTIONS = ("--reading", f"{SOON:g}", "--sending", f"{SOON:g}", "--queue", "8", "--max-images", "4")
MEGABYTES = 80  # that an attack may take for good


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    few("maskgit").save_pretrained(folder := tmp_path_factory.mktemp("models") / "quick")
    return folder


@pytest.fixture
def held() -> Iterator[ExitStack]:
    """Connections that stay open until the server has ended."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def attacked(model: Path, held: ExitStack) -> Iterator[tuple[int, str]]:
    """The process and the address of a server; it must say nothing, or one line, and end in time."""
    with process("serve", "--model", str(model), *OPTIONS, files=FILES) as (running, address):
        assert sample(address).status_code == 200
        yield running.pid, address
        began = time.monotonic()
        running.send_signal(signal.SIGTERM)
        assert running.wait(30) == 0
        assert time.monotonic() - began < 8
        assert running.stderr is not None
        assert len(running.stderr.read().splitlines()) <= 1


def sample(address: str) -> httpx.Response:
    return httpx.post(f"{address}/v1/sample", json={"labels": 1, "full": 2, "local": 0}, timeout=30)


def knock(address: str, sent: bytes = b"") -> socket.socket:
    """A connection on which something was sent, as far as the server takes it."""
    place = urlsplit(address)
    client = socket.create_connection((place.hostname, place.port), timeout=5)
    client.settimeout(1)
    try:
        client.sendall(sent)
    except (TimeoutError, ConnectionError):  # it takes no more
        return client
    return client


def request(line: str, length: int, sent: bytes) -> bytes:
    headers = f"{line} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}"
    return f"{headers}\r\n\r\n".encode() + sent


def resident(pid: int) -> int:
    """Megabytes of memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmRSS"))


def connections(pid: int) -> int:
    """Sockets that a process has open."""
    return sum("socket:" in str(file.readlink()) for file in Path(f"/proc/{pid}/fd").iterdir() if file.is_symlink())


@contextmanager
def watched(address: str) -> Iterator[list[float]]:
    """Seconds that the server's health took to tell, again and again."""
    seconds, over = list[float](), threading.Event()

    def watch() -> None:
        while not over.is_set():
            began = time.monotonic()
            assert httpx.get(f"{address}/healthz", timeout=30).status_code == 200
            seconds.append(time.monotonic() - began)
            time.sleep(0.02)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seconds
    finally:
        over.set()
        thread.join(60)
    assert seconds
    assert max(seconds) < 1, f"health took {max(seconds):.2f} s"


def test_idle_connections_make_room_and_end(attacked: tuple[int, str], held: ExitStack) -> None:
    pid, address = attacked
    with watched(address):
        for _ in range(2 * FILES):
            held.enter_context(knock(address))
        assert sample(address).status_code == 200
        slow = held.enter_context(knock(address, b"GET /healthz HTTP/1.1\r\nHost: "))
        for _ in range(3):  # a byte now and then is no request
            time.sleep(SOON / 2)
            try:
                slow.sendall(b"x")
            except OSError:
                break
        until(lambda: connections(pid) < 10, 10)


def test_who_never_reads_is_left(attacked: tuple[int, str], held: ExitStack) -> None:
    """More answers than fit into the buffers of the system, on each of some connections.

    Nor does the end wait for them, or for bodies that do not come: the fixture looks at the time.
    """
    pid, address = attacked
    many = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2000
    with watched(address):
        before = connections(pid)
        for _ in range(13):
            held.enter_context(knock(address, many))
        assert sample(address).status_code == 200
        until(lambda: connections(pid) <= before + 2, 20)
    for sent in (many, request("POST /v1/sample", 100, b'{"labels": 1'), b""):
        held.enter_context(knock(address, sent))


def test_bodies_that_nobody_asked_for_are_not_kept(attacked: tuple[int, str], held: ExitStack) -> None:
    pid, address = attacked
    before, body = resident(pid), b" " * (2**23 - 1)
    for line in ("GET /healthz", "POST /v1/nothing", "POST /v1/sample"):
        sent = request(line, 2**23, body)
        with watched(address), ThreadPoolExecutor(40) as pool:
            for client in pool.map(lambda sent: knock(address, sent), [sent] * 40):
                held.enter_context(client)
        assert resident(pid) - before < MEGABYTES
    assert sample(address).status_code == 200


@pytest.mark.parametrize("fit", [False, True])
def test_large_pictures_hold_up_nobody(attacked: tuple[int, str], held: ExitStack, fit: bool) -> None:
    """Sizes are told by the header; where the size would do, pictures are unpacked apart from all else, and not at
    all once their senders have left."""
    _, address = attacked
    Image.new("1", (4096, 4096)).save(file := io.BytesIO(), "PNG")
    body = {"image": base64.b64encode(file.getvalue()).decode(), "redraw": [0, 0, 99, 2], "labels": 1, "fit": fit}
    whole = request("POST /v1/edit", len(text := json.dumps(body).encode()), text)
    with watched(address):
        senders = [held.enter_context(knock(address, whole)) for _ in range(60)]
        began = time.monotonic()
        assert sample(address).status_code in (200, 429)  # these pictures have places in the queue
        assert time.monotonic() - began < 2
        for sender in senders:
            sender.close()
        began = time.monotonic()
        until(lambda: sample(address).status_code == 200, 20)
        assert time.monotonic() - began < 3


def test_bodies_of_nonsense_are_refused_at_once(attacked: tuple[int, str]) -> None:
    pid, address = attacked
    before, headers = resident(pid), {"Content-Type": "application/json"}
    with watched(address):
        for path in ("/v1/sample", "/v1/edit"):
            for piece in (b'"k%06d":0,', b"%06d,", b'"\\u0041%04d\\n",', b"[[%06d],"):
                inside = b"".join(piece % number for number in range(2**23 // len(piece % 0) - 10))
                body = b'{"labels": ' + (b"1, %b}" if b":" in piece else b"[%b]}") % (inside + b'"":1')
                answer = httpx.post(f"{address}{path}", content=body, headers=headers, timeout=30)
                assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body")
    assert resident(pid) - before < MEGABYTES
