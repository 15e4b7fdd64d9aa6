"""Many clients at once against `recap serve`, and every image held against the command line's.

    python benchmarks/serve.py --clients 64 --seconds 60

Starts a server of a shrunk model with random weights on a free port of this machine, lets clients ask for a while,
each as soon as it was answered (after a 429, when the answer says so), and ends it by SIGTERM with requests under
way. Prints a table and one JSON object as the last line; exit status 1 if an answer was neither an image of the
command line nor a 429, or if an accepted request was not answered.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

SCHEDULES = ({"full": 6, "local": 4}, {"full": 8, "local": 0})
SEED = 0  # of weights and images
COMMAND = [sys.executable, "-m", "recap"]


class Tally:
    """What the clients saw."""

    def __init__(self) -> None:
        self.statuses: Counter[str] = Counter()
        self.seconds: list[float] = []
        self.images = self.other = 0


def drawn(model: list[str], num: int) -> list[list[bytes]]:
    """The images that the command line draws, for each schedule."""
    folders = []
    for schedule in SCHEDULES:
        with tempfile.TemporaryDirectory() as out:
            steps = [word for name, value in schedule.items() for word in (f"--{name}", str(value))]
            # one at a time: on the CPU, batches of other sizes may be rounded otherwise
            more = ["--num", str(num), "--batch", "1", "--seed", str(SEED), "--labels", "1,2,3", "--out", out]
            subprocess.run([*COMMAND, "sample", *model, *more, *steps], check=True, capture_output=True)
            folders.append([path.read_bytes() for path in sorted(Path(out).glob("0*.png"))])
    return folders


async def ask(
    client: httpx.AsyncClient, number: int, until: float, written: list[list[bytes]], tally: Tally, patience: float
) -> None:
    """One client: asks until the time is up, and looks at every answer."""
    turn = number
    while time.monotonic() < until:
        kind, first = turn % len(SCHEDULES), (7 * turn) % (len(written[0]) - 1)
        num = 1 + turn % 2
        body = {**SCHEDULES[kind], "labels": [1, 2, 3], "seed": SEED, "first": first, "num": num}
        turn += 1
        began = time.monotonic()
        try:
            answer = await client.post("/v1/sample", json=body)
        except httpx.TransportError as error:
            tally.statuses[type(error).__name__] += 1
            continue
        tally.statuses[str(answer.status_code)] += 1
        if answer.status_code == 429:
            await asyncio.sleep(min(int(answer.headers["retry-after"]), patience))
        elif answer.status_code == 200:
            tally.seconds.append(time.monotonic() - began)
            images = [base64.b64decode(image["png"]) for image in answer.json()["images"]]
            tally.images += len(images)
            tally.other += images != written[kind][first : first + num]


async def load(address: str, clients: int, seconds: float, written: list[list[bytes]], patience: float) -> Tally:
    tally, until = Tally(), time.monotonic() + seconds
    limits = httpx.Limits(max_connections=clients)
    async with httpx.AsyncClient(base_url=address, limits=limits, timeout=120) as client:
        await asyncio.gather(*(ask(client, number, until, written, tally, patience) for number in range(clients)))
    return tally


def stopped(server: subprocess.Popen[str], address: str) -> tuple[list[int], int]:
    """Signal a server with requests under way: their answers, and the server's exit status."""

    async def last() -> list[int]:
        async with httpx.AsyncClient(base_url=address, timeout=120) as client:
            body = {**SCHEDULES[0], "labels": [1], "seed": SEED, "num": 2}
            asking = [asyncio.create_task(client.post("/v1/sample", json=body)) for _ in range(8)]
            while not any(task.done() for task in asking):
                await asyncio.sleep(0.002)
            server.send_signal(signal.SIGTERM)
            return [answer.status_code for answer in await asyncio.gather(*asking)]

    return asyncio.run(last()), server.wait(60)


def count(metrics: str, pattern: str) -> int:
    return sum(int(float(value)) for value in re.findall(rf"^{pattern} (\S+)$", metrics, re.M))


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", default="maskgit-large", help="published size to shrink (default maskgit-large)")
    options.add_argument("--clients", type=int, default=64)
    options.add_argument("--seconds", type=float, default=60.0)
    options.add_argument("--batch", type=int, default=8)
    options.add_argument("--queue", type=int, default=32, help="images that may wait (default 32)")
    options.add_argument("--num", type=int, default=32, help="different images of each schedule (default 32)")
    options.add_argument("--patience", type=float, default=2.0, help="longest wait after a 429 (default 2 s)")
    return options


def main() -> int:
    args = parser().parse_args()
    model = ["--model", args.model, "--tiny"]
    written = drawn(model, args.num)
    options = ["--port", "0", "--batch", str(args.batch), "--queue", str(args.queue), "--max-images", "4"]
    server = subprocess.Popen([*COMMAND, "serve", *model, *options], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        found = re.search(r"http://\S+", server.stdout.readline())
        if found is None:
            raise RuntimeError("the server did not start")
        began = time.monotonic()
        tally = asyncio.run(load(found[0], args.clients, args.seconds, written, args.patience))
        elapsed = time.monotonic() - began  # answers to what was asked at the last moment included
        metrics = httpx.get(f"{found[0]}/metrics").text
        under_way, status = stopped(server, found[0])
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()
    accepted = count(metrics, r'recap_requests_total\{endpoint="/v1/sample",status="200"\}')
    row: dict[str, Any] = {
        "model": f"{args.model} (tiny)",
        "clients": args.clients,
        "seconds": args.seconds,
        "answers": dict(sorted(tally.statuses.items())),
        "accepted_by_server": accepted,
        "images": tally.images,
        "images_per_second": tally.images / elapsed,
        "other_images": tally.other,
        "median_seconds": statistics.median(tally.seconds) if tally.seconds else None,
        "p99_seconds": statistics.quantiles(tally.seconds, n=100)[98] if len(tally.seconds) > 1 else None,
        "images_a_batch": count(metrics, "recap_batch_images_sum")
        / max(1, count(metrics, "recap_batch_images_count")),
        "under_way_at_the_signal": dict(Counter(map(str, under_way))),
        "exit_status": status,
        "cores": os.cpu_count(),
    }
    row["ok"] = (
        set(row["answers"]) <= {"200", "429"}
        and row["answers"].get("200", 0) == accepted > 0
        and not tally.other
        and set(under_way) <= {200, 503}
        and status == 0
    )
    for name, value in row.items():
        print(f"{name:<24} {value:.4g}" if isinstance(value, float) else f"{name:<24} {value}")
    print(json.dumps(row))
    return 0 if row["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
