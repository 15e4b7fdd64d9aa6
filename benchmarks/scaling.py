"""How much faster two processes draw than one, with one thread each, in one run on one machine.

The same images are drawn by one process and by several, turn by turn, so that a machine that slows down slows both.
Only drawing counts: from the folder's being prepared to its last image, without imports and the loading of a model.

    python benchmarks/scaling.py --num 200 --processes 2
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--model", default="flowers-maskgit")
    options.add_argument("--num", type=int, default=200, help="images of each run (default 200)")
    options.add_argument("--processes", type=int, default=2)
    options.add_argument("--full", type=int, default=8)
    options.add_argument("--local", type=int, default=4)
    options.add_argument("--rounds", type=int, default=1, help="turns; the best of each kind counts (default 1)")
    return options


def main() -> None:
    args = parser().parse_args()
    seconds: dict[int, list[float]] = {1: [], args.processes: []}
    digests: set[str] = set()
    with tempfile.TemporaryDirectory() as place:
        for turn in range(args.rounds):
            for world in seconds:
                out = Path(place) / f"{turn}-{world}"
                seconds[world].append(drawn_in(args, world, out))
                digests.add(digest(out))
                print(f"{world} process(es): {args.num} images in {seconds[world][-1]:.1f} s", file=sys.stderr)
    if len(digests) != 1:
        raise SystemExit("the runs drew different images; their times say nothing")
    best = {world: min(values) for world, values in seconds.items()}
    ratio = best[1] / best[args.processes]
    print(f"{args.processes} processes are {ratio:.2f} times as fast as one, and draw the same files")
    result = {"model": args.model, "num": args.num, "processes": args.processes, "seconds": best, "ratio": ratio}
    print(json.dumps(result | {"cores": os.cpu_count()}))


def drawn_in(args: argparse.Namespace, world: int, out: Path) -> float:
    """Seconds between the moment when the folder is prepared and the moment when the last image is recorded."""
    recap = ["recap", "sample", "--model", args.model, "--num", str(args.num), "--out", str(out)]
    schedule = ["--full", str(args.full), "--local", str(args.local), "--labels", "random"]
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    command = [sys.executable, *launcher, "-m", "--", *recap, *schedule]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    began = None
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None and began is None:
            began = time.monotonic() if (out / "manifest.json").exists() else None
            time.sleep(0.005)
        assert process.stderr is not None
        said = process.stderr.read().decode()
        process.wait()
        ended = time.monotonic()
    if process.returncode or began is None:
        raise SystemExit(f"a run failed:\n{said}")
    written = max(path.stat().st_mtime for path in out.glob("[0-9]*.png"))
    return ended - began - (time.time() - written)  # what comes after the last image is no drawing


def digest(folder: Path) -> str:
    """One for all pictures of a folder."""
    whole = hashlib.sha256()
    for path in sorted(folder.glob("[0-9]*.png")):
        whole.update(path.read_bytes())
    return whole.hexdigest()


if __name__ == "__main__":
    main()
