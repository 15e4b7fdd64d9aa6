"""`--preview`: a run drawn in a terminal of its own, which changes nothing about the run."""

from __future__ import annotations

import fcntl
import io
import json
import os
import re
import select
import socket
import struct
import termios
import time
from collections.abc import Callable
from itertools import accumulate, count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from recap import cosine
from recap.cli import main
from recap.cli.preview import Preview
from recap.cli.screen import Screen
from recap.images import box_mask
from recap.pace import Pace
from recap.terminal import Colours, Look
from recap.timing import Stopwatch
from tests.distributed.runs import CONTEXT, child, pictures
from tests.test_pipeline import SCHEDULE, pipeline, request, shared
from tests.vt import Terminal

COLUMNS, LINES = 120, 30
COLOURS = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "NO_COLOR": ""}


def in_terminal(argv: list[str], path: str, folder: Path, environment: dict[str, str]) -> None:
    """What a process of its own does: take a terminal, and run a command in it."""
    os.chdir(folder)
    os.setsid()  # what is opened next is this process's terminal, and Ctrl-C there means this process
    os.dup2(os.open(path, os.O_RDWR), 0)
    child(argv, path, environment, 1, None)


class Run:
    """A command in a terminal, and all that it wrote there."""

    def __init__(self, *argv: str, **environment: str) -> None:
        self.master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        arguments = (list(argv), os.ttyname(slave), Path.cwd(), {**COLOURS, **environment})
        self.process = CONTEXT.Process(target=in_terminal, args=arguments)
        self.process.start()
        self.slave, self.written = slave, b""

    def read(self, enough: Callable[[bytes], bool], seconds: float = 60) -> None:
        """Until it wrote enough, or has ended and there is no more."""
        end = time.monotonic() + seconds
        while not enough(self.written):
            assert time.monotonic() < end, self.written[-500:]
            if select.select([self.master], [], [], 0.05)[0]:
                self.written += os.read(self.master, 65536)
            elif self.process.exitcode is not None:
                return

    def end(self) -> tuple[int, Terminal]:
        """How it ended, and what its screen shows then."""
        self.read(lambda _: False)
        os.close(self.slave)
        os.close(self.master)
        assert self.process.exitcode is not None
        terminal = Terminal(COLUMNS, LINES)
        terminal.feed(self.text)
        return self.process.exitcode, terminal

    @property
    def text(self) -> str:
        return self.written.decode()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small model, a picture of its size and a mask."""
    monkeypatch.chdir(tmp_path)
    pipe = pipeline("maskgit")
    pipe.sampling = type(pipe.sampling)(pipe.sampling.preset, full=6, local=4)
    pipe.save_pretrained(tmp_path / "model")
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)).save("small.png")
    box_mask(8, 4, 0, 8, 8).save("mask.png")
    return tmp_path


def command(what: str, *more: str) -> list[str]:
    own = ["--image", "small.png", "--mask", "mask.png", "--labels", "1"]
    return [what, "--model", "model", *(own if what == "edit" else []), *more]


@pytest.mark.parametrize("what", ["sample", "edit"])
def test_files_are_the_same_and_one_block_is_left(place: Path, what: str) -> None:
    assert main(command(what, "--num", "3", "--out", "plain")) == 0
    run = Run(*command(what, "--num", "3", "--out", "seen", "--preview"))
    status, terminal = run.end()
    assert status == 0
    assert terminal.calm
    names = sorted(path.name for path in Path("plain").iterdir())
    assert names == sorted(path.name for path in Path("seen").iterdir())
    assert pictures(Path("plain")) == pictures(Path("seen"))
    for name in set(names) - {"run.json", ".lock"}:
        assert Path("plain", name).read_bytes() == Path("seen", name).read_bytes(), name
    first, last = terminal.text[-2:]
    assert re.search(r"image 3 of 3 .*16/16", first)
    assert last.startswith("model: ")
    assert sum("decoded" in line for line in terminal.text) == 1
    assert not terminal.scrolled
    assert "%|" not in run.text  # it takes the place of the progress bar
    assert {name for name in json.loads(Path("seen/run.json").read_text()) if "preview" in name} == set()


def test_ctrl_c_gives_the_cursor_back(place: Path) -> None:
    run = Run(*command("sample", "--num", "100000", "--batch", "1", "--preview", "--out", "out"))
    run.read(lambda written: written.count(b"decoded") > 3)
    os.write(run.master, b"\x03")
    status, terminal = run.end()
    assert status == 130
    assert terminal.calm
    assert re.match(r"recap sample: stopped by SIGINT; \d+ of 100000 images are in out", terminal.text[-1])
    assert sum("decoded" in line for line in terminal.text) == 1


def test_no_color_is_heeded(place: Path) -> None:
    run = Run(*command("sample", "--num", "2", "--preview", "--out", "out"), NO_COLOR="1")
    status, terminal = run.end()
    assert status == 0
    assert not re.search(r"\x1b\[[34]8", run.text)
    assert "░" in run.text or "▒" in run.text
    assert terminal.calm


def test_only_the_first_process_draws(place: Path) -> None:
    argv = command("sample", "--num", "6", "--preview", "--out", "out")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    runs = [Run(*argv, **common, RANK=str(rank), LOCAL_RANK=str(rank)) for rank in (0, 1)]
    ends = [run.end() for run in runs]
    assert [status for status, _ in ends] == [0, 0]
    assert "decoded" in runs[0].text
    assert "\x1b" not in runs[1].text
    assert main([*command("sample", "--num", "6"), "--out", "plain"]) == 0
    assert pictures(Path("plain")) == pictures(Path("out"))


@pytest.mark.parametrize("term", ["xterm-256color", "dumb"])
def test_without_a_terminal_it_says_so_and_goes_on(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], term: str
) -> None:
    monkeypatch.setenv("TERM", term)
    for what in ("sample", "edit"):
        assert main(command(what, "--preview", "--out", what)) == 0
        out, err = capsys.readouterr()
        assert "\x1b[?" not in out + err
        assert err.splitlines()[0] == "--preview needs a terminal whose cursor can be moved; going on without it"
        assert err.count("--preview") == 1
        assert Path(what, "000000.png").exists()


class Page(io.StringIO):
    """A file that keeps what every drawing looked like."""

    def __init__(self, columns: int, lines: int) -> None:
        super().__init__()
        self.terminal, self.pages = Terminal(columns, lines), list[list[str]]()

    def write(self, text: str) -> int:
        self.terminal.feed(text.replace("\n", "\r\n"))
        self.pages.append(self.terminal.text)
        return len(text)


def preview_of(
    family: str, monkeypatch: pytest.MonkeyPatch, columns: int = 100, num: int = 2
) -> tuple[Preview, Page]:
    """A preview that shows every sub-step."""
    page = Page(columns, 40)
    monkeypatch.setattr(Screen, "size", property(lambda self: (columns, 40)))
    preview = Preview(
        shared(family), Screen(page), Look(Colours.TRUE), "title", SCHEDULE, num, names=["rose", "lily"]
    )
    preview.pace = Pace(share=1e9, least=0.0)
    return preview, page


@pytest.mark.parametrize("family", ["maskgit", "mar", "mage"])
def test_every_sub_step_can_be_shown(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = shared(family)
    preview, page = preview_of(family, monkeypatch)
    alone = pipe(**request(family, 1), seed=0, schedule=SCHEDULE)

    def after(_: Any, step: int, decoded: int, values: dict[str, Any]) -> None:
        preview.step([1], step + 1, values["canvas"])

    result = pipe(**request(family, 1), seed=0, schedule=SCHEDULE, callback_on_step_end=after)
    preview.done([1], result.images)
    assert torch.equal(result.tokens, alone.tokens)
    lines = [pages[-1] for pages in page.pages]
    assert len(lines) == len(SCHEDULE.steps)  # all but the last, and the finished picture
    assert all(line.startswith("title  image 2 of 2  lily  ") for line in lines)
    fulls, locals_ = count(1), count(1)
    wanted = [
        f"local {next(locals_)} of {SCHEDULE.local}" if index else f"full {next(fulls)} of {SCHEDULE.full}"
        for group in SCHEDULE
        for index in range(len(group.steps))
    ]
    assert all(what in line for what, line in zip(wanted[:-1], lines[:-1], strict=True))
    decoded = accumulate(SCHEDULE.sizes)
    assert all(f"decoded {number}/16" in line for number, line in zip(decoded, lines, strict=True))
    finished = np.asarray(result.images[0].resize((64, 64), Image.Resampling.HAMMING))
    top = len(page.terminal.text) - 34
    for y, x in ((0, 0), (17, 40), (63, 63)):
        assert page.terminal.halves(top + y // 2, x)[y % 2] == tuple(finished[y, x].tolist())


def test_batches_show_their_first_images(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = shared("maskgit")
    preview, page = preview_of("maskgit", monkeypatch, num=6)
    result = pipe(
        **request("maskgit", 6),
        seed=0,
        schedule=SCHEDULE,
        callback_on_step_end=lambda _, step, decoded, values: preview.step(range(6), step + 1, values["canvas"]),
    )
    preview.done(range(6), result.images)
    assert all("images 1 to 6 of 6" in pages[-1] for pages in page.pages)
    assert len(page.pages) == len(SCHEDULE.steps)


def test_pictures_that_find_no_memory_are_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    preview, page = preview_of("maskgit", monkeypatch)
    pipe = preview.pipe = pipeline("maskgit")
    monkeypatch.setattr(pipe, "preview", refuse)
    for step, canvas in enumerate(pipe.canvases([1], schedule=SCHEDULE, seed=0), 1):
        preview.step([0], step, canvas)
    assert len(page.pages) == len(SCHEDULE.steps) - 1
    assert not preview._whole


def refuse(tokens: Any, masked: Any) -> None:
    raise torch.OutOfMemoryError("out of memory")


def test_values_that_are_no_numbers_have_no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    preview, page = preview_of("mar", monkeypatch)
    for step, canvas in enumerate(shared("mar").canvases([1], schedule=SCHEDULE, seed=0), 1):
        with torch.inference_mode():
            canvas.tokens[:, 0] = torch.nan
            canvas.sound[:] = False
        preview.step([0], step, canvas)
    assert len(page.pages) == len(SCHEDULE.steps) - 1


def test_what_is_paused_counts_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("recap.timing.now", lambda _: now)
    watch = Stopwatch(torch.device("cpu"))
    with watch.measure("total"):
        now += 1
        with watch.pause():
            now += 10
        with watch.measure("full"):
            now += 2
    assert (watch.seconds["total"], watch.seconds["full"]) == (3, 2)


def test_time_left_is_by_what_was_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    preview, _ = preview_of("maskgit", monkeypatch, num=4)
    preview.schedule, preview.numbers, preview._drawn = cosine(16, full=4), [1], 1
    monkeypatch.setattr("time.perf_counter", lambda: preview._began + 6.0)
    assert preview._left(2) == "about 10 s left"  # 1.5 of 4 images took 6 s
    preview.numbers, preview._drawn = [3], 4
    assert preview._left(4) == ""
