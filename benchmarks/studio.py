"""How long a visitor of `recap studio` waits: from the request to the first frame, and what previews cost.

    python benchmarks/studio.py

Starts the real server with a model that comes with the package on a free port of this machine, and asks over HTTP:
once on the server as it has just started, several times after that, and two visitors at once. Prints a table and one
JSON object as the last line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import time
from typing import Any

import httpx

from recap.weights import embedded

Told = list[tuple[float, dict[str, Any]]]  # seconds since the request, event


async def ask(client: httpx.AsyncClient, body: dict[str, Any]) -> Told:
    """All events of a run, with when they came."""
    told, began = [], time.perf_counter()
    async with client.stream("POST", "/api/compare", json=body) as stream:
        stream.raise_for_status()
        async for line in stream.aiter_lines():
            event = json.loads(line)
            told.append((time.perf_counter() - began, event))
    if told[-1][1]["event"] != "done":
        raise RuntimeError(f"a run ended with {told[-1][1]}")
    return told


def first(told: Told, event: str) -> float:
    return next(seconds for seconds, each in told if each["event"] == event)


def overhead(told: Told) -> dict[str, float]:
    """What a run took beside its own computing, and how many of its frames came with a picture."""
    frames = [event for _, event in told if event["event"] == "frame"]
    computing = sum(told[-1][1]["seconds"].values())
    return {
        "seconds": told[-1][0],
        "computing": computing,
        "beside": told[-1][0] / computing - 1,
        "pictures": sum(frame["picture"] is not None for frame in frames) / len(frames),
    }


async def measured(address: str, args: argparse.Namespace) -> dict[str, Any]:
    body = {"model": args.model, "full": args.full, "local": args.local}
    async with httpx.AsyncClient(base_url=address, timeout=600) as client:
        cold = await ask(client, body)
        warm = [await ask(client, {**body, "seed": seed}) for seed in range(1, args.times + 1)]
        two = await asyncio.gather(ask(client, body), ask(client, {**body, "seed": 1}))
    return {
        "cold_ms": 1000 * first(cold, "frame"),
        "warm_ms": [1000 * first(told, "frame") for told in warm],
        "run": {name: statistics.median(overhead(told)[name] for told in warm) for name in overhead(cold)},
        "speedup": statistics.median(ratio for told in warm for ratio in told[-1][1]["speedup"]["pairs"]),
        "two_visitors": {
            "told_ms": [1000 * told[0][0] for told in two],  # that it begins, or its place in the queue
            "first_frame_ms": [1000 * first(told, "frame") for told in two],
            "seconds": [told[-1][0] for told in two],
        },
    }


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", default=embedded()[0], help=f"model to draw with (default {embedded()[0]})")
    options.add_argument("--full", type=int, default=8)
    options.add_argument("--local", type=int, default=8)
    options.add_argument("--times", type=int, default=5, help="runs on the warm server (default 5)")
    return options


def main() -> int:
    args = parser().parse_args()
    began = time.perf_counter()
    command = [sys.executable, "-m", "recap", "studio", "--model", args.model, "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        found = re.search(r"http://\S+", server.stdout.readline())
        if found is None:
            raise RuntimeError("the studio did not start")
        started = time.perf_counter() - began
        row = {
            "model": args.model,
            "evaluations": f"{args.full}+{args.local}",
            "cores": os.cpu_count(),
            "start_s": started,
            **asyncio.run(measured(found[0], args)),
        }
        began = time.perf_counter()
        server.terminate()
        row["exit_status"] = server.wait(60)
        row["stop_s"] = time.perf_counter() - began
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()
    warm, two, run = row["warm_ms"], row["two_visitors"], row["run"]
    print(f"{row['model']} {row['evaluations']}, {row['cores']} cores: from the request to the first frame")
    print(f"  server just started     {row['cold_ms']:7.0f} ms   (it took {started:.1f} s to start)")
    print(f"  warm, median of {len(warm)}       {statistics.median(warm):7.0f} ms   (worst {max(warm):.0f})")
    print(
        f"a run took {run['seconds']:.2f} s, {100 * run['beside']:.0f}% more than its computing; "
        f"{100 * run['pictures']:.0f}% of its frames had a picture"
    )
    print(
        f"two visitors at once: told where they stand after {max(two['told_ms']):.0f} ms; "
        f"done after {min(two['seconds']):.1f} and {max(two['seconds']):.1f} s"
    )
    print(json.dumps(row))
    return 0


if __name__ == "__main__":
    sys.exit(main())
