"""Runs that a notebook shows while they go on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from PIL import Image

from recap.core.timeline import timeline_svg
from recap.frames import Frame
from recap.pace import Pace
from recap.painting import finished, unfinished
from recap.pictures import grid
from recap.showing import image_html

SHOWN = 4  # images of a batch
SIDE = 128  # pixels of each
GUESS = 0.1  # seconds that a picture takes, until one is measured


def watch(frames: Iterable[Frame]) -> Frame:
    """Show a run in a notebook as its image fills in: `recap.notebook.watch(pipe.stream(54, seed=0))`.

    Returns the last frame, whose `images` and `tokens` are those of the finished run. Showing takes a quarter of the
    time at most: frames that come too soon are left out.
    """
    display = _display()
    pace, shown, frame = Pace({"frame": GUESS}), None, None
    for frame in frames:
        if frame.last or pace.due("frame"):
            with pace.showing("frame"):
                bundle = {"text/html": frame_html(frame), "text/plain": repr(frame)}
                if shown is None:
                    shown = display(bundle, raw=True, display_id=True)
                else:
                    shown.update(bundle, raw=True)
    if frame is None:
        raise ValueError("there are no frames to watch; give what pipe.stream(...) returns, and only once")
    return frame


def frame_html(frame: Frame) -> str:
    """A frame for a page: pictures with their masked tokens, the evaluations so far, and a line that counts them."""
    cells = frame.cells[:SHOWN].cpu().numpy()
    masked = (frame.masked | ~frame.sound.unsqueeze(1))[:SHOWN]
    pictures = frame.pipe.preview(frame.tokens[:SHOWN], masked)
    seen = ~masked.cpu().numpy()
    sheets = [
        finished(picture, SIDE) if frame.last else unfinished(picture, own, there, frame.evaluation, SIDE)
        for picture, own, there in zip(pictures, cells, seen, strict=True)
    ]
    sheet = grid([Image.fromarray(sheet.pixels) for sheet in sheets])
    said = f"{frame.position}, decoded {frame.decoded} of {cells.shape[1]}, {frame.seconds:.1f} s"
    return (
        f'<div style="display:inline-block">{image_html(sheet, 2 if len(sheets) == 1 else 1)}'
        f'<div style="margin-top:6px">{timeline_svg(frame.schedule, frame.step)}</div><div>{said}</div></div>'
    )


def _display() -> Any:
    try:
        from IPython.display import display
    except ImportError as error:
        raise ImportError(
            "recap.notebook.watch shows frames in a notebook and needs IPython, which is not installed; "
            "pip install notebook, or go through the frames yourself and look at frame.images"
        ) from error
    return display
