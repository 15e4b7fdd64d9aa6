"""Honest clients of `recap serve` among those that mean harm, and what the honest ones see.

    python benchmarks/attack.py --clients 64 --seconds 60

Starts a server of a shrunk model with random weights on a free port of this machine. A quarter of the clients asks
for images, the others hold connections and say nothing, never read their answers, send large bodies that are refused,
or large pictures. Ends the server by SIGTERM under that load. Prints one JSON object; exit status 1 if an honest
request was not answered, the health of the server took a second to tell, memory stayed, or the end took ten seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
from PIL import Image

OPTIONS = ("--port", "0", "--max-images", "4", "--queue", "32", "--reading", "5", "--sending", "5", "--grace", "8")
MEGABYTES = 50  # that may stay
KINDS = ("honest", "idle", "silent", "large", "pictures")
END = 10.0  # seconds


def resident(pid: int) -> float:
    """Megabytes of memory."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def post(path: str, body: bytes, length: int | None = None) -> bytes:
    about = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {length or len(body)}"
    return f"POST {path} HTTP/1.1\r\n{about}\r\n\r\n".encode() + body


class Load:
    """Clients of all kinds, until the time is up, and what they saw."""

    def __init__(self, address: str, pid: int) -> None:
        self.address, self.pid, self.ending = address, pid, False
        self.host, _, port = address.removeprefix("http://").partition(":")
        self.port = int(port)
        self.answers: Counter[str] = Counter()
        self.after: Counter[str] = Counter()  # the signal
        self.health: list[float] = []
        self.most = 0.0
        Image.new("1", (4096, 4096)).save(file := io.BytesIO(), "PNG")
        picture = {"image": base64.b64encode(file.getvalue()).decode(), "redraw": [0, 0, 999, 2], "labels": 1}
        silent = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 500
        self.sent = {
            "idle": b"GET /healthz HTTP/1.1\r\nHost:",
            "silent": silent,
            "large": post("/v1/sample", b'{"k":0,' * 2**18, 2**23),
            "pictures": post("/v1/edit", json.dumps(picture | {"fit": True}).encode()),
        }

    async def honest(self, client: httpx.AsyncClient, number: int) -> None:
        while not self.ending:
            body = {"labels": number % 5, "full": 4, "local": 2, "num": 1, "seed": number}
            began = time.monotonic()
            try:
                answer = await client.post("/v1/sample", json=body)
            except httpx.TransportError as error:
                if self.ending and time.monotonic() - began < 1:
                    continue  # it may not have reached the server any more
                (self.after if self.ending else self.answers)[type(error).__name__] += 1
                continue
            (self.after if self.ending else self.answers)[str(answer.status_code)] += 1
            if answer.status_code == 429:
                await asyncio.sleep(0.5)

    async def harmful(self, kind: str) -> None:
        while not self.ending:
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                _, writer = await asyncio.open_connection(self.host, self.port, limit=2**12)
                try:
                    writer.write(self.sent[kind])
                    await asyncio.wait_for(writer.drain(), 3)
                    await asyncio.sleep(3)  # and nothing is read
                finally:
                    writer.transport.abort()
            await asyncio.sleep(0.2)

    async def watch(self, client: httpx.AsyncClient) -> None:
        while not self.ending:
            began = time.monotonic()
            await client.get("/healthz")
            self.health.append(time.monotonic() - began)
            self.most = max(self.most, resident(self.pid))
            await asyncio.sleep(0.1)

    async def run(self, clients: int, seconds: float, *, end: bool) -> float:
        """All of them; afterwards, if it is to `end`, the seconds that the server took."""
        self.ending = False
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx.AsyncClient(base_url=self.address, limits=limits, timeout=60) as client:
            kinds = [KINDS[0] if number % 4 == 0 else KINDS[1 + number % 4] for number in range(clients)]
            tasks = [
                self.honest(client, n) if kind == "honest" else self.harmful(kind) for n, kind in enumerate(kinds)
            ]
            tasks += [self.harmful("idle") for _ in range(clients)]
            running = [asyncio.create_task(task) for task in (*tasks, self.watch(client))]
            await asyncio.sleep(seconds)
            self.ending, began = True, time.monotonic()
            if end:
                os.kill(self.pid, signal.SIGTERM)
            while end and _alive(self.pid) and time.monotonic() < began + 60:
                await asyncio.sleep(0.05)
            ended = time.monotonic() - began
            await asyncio.gather(*running, return_exceptions=True)
        return ended


def _alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def calm(address: str, pid: int, before: float) -> float:
    """Megabytes over those at the start, a while after a load of the same kind has ended."""
    end = time.monotonic() + 30
    while resident(pid) - before > MEGABYTES and time.monotonic() < end:
        httpx.get(f"{address}/healthz", timeout=10)
        time.sleep(0.5)
    return resident(pid) - before


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", default="maskgit-large", help="published size to shrink (default maskgit-large)")
    options.add_argument("--clients", type=int, default=64)
    options.add_argument("--seconds", type=float, default=60.0)
    return options


def main() -> int:
    args = parser().parse_args()
    command = [sys.executable, "-m", "recap", "serve", "--model", args.model, "--tiny", *OPTIONS]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = server.stdout.readline().split()[-1]
        body = {"labels": 1, "full": 4, "local": 2}
        Image.new("1", (4096, 4096)).save(file := io.BytesIO(), "PNG")
        edit = {"image": base64.b64encode(file.getvalue()).decode(), "redraw": [0, 0, 2, 2], "labels": 1, "fit": True}
        for _ in range(3):  # what honest clients ask for takes memory too
            httpx.post(f"{address}/v1/sample", json=body, timeout=60).raise_for_status()
            httpx.post(f"{address}/v1/edit", json=edit, timeout=60).raise_for_status()
        before = resident(server.pid)
        load = Load(address, server.pid)
        asyncio.run(load.run(args.clients, args.seconds, end=False))
        load.after.clear()
        stayed = calm(address, server.pid, before)
        ended = asyncio.run(load.run(args.clients, min(args.seconds, 5.0), end=True))
        _, errors = server.communicate(timeout=30)
    finally:
        if server.poll() is None:
            server.kill()
            server.communicate()
    row: dict[str, Any] = {
        "clients": args.clients,
        "seconds": args.seconds,
        "honest_answers": dict(load.answers),
        "under_way_at_the_signal": dict(load.after),
        "slowest_health": max(load.health),
        "health_asked": len(load.health),
        "megabytes_before": before,
        "megabytes_most": load.most,
        "megabytes_that_stayed": stayed,
        "seconds_to_end": ended,
        "exit_status": server.returncode,
        "lines_in_the_log": len(errors.splitlines()),
        "cores": os.cpu_count(),
    }
    row["ok"] = (
        {*load.answers} <= {"200", "429"}
        and load.answers["200"] > 0
        and {*load.after} <= {"200", "429", "503"}
        and max(load.health) < 1
        and stayed < MEGABYTES
        and ended < END
        and server.returncode == 0
    )
    print(json.dumps(row))
    return 0 if row["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
