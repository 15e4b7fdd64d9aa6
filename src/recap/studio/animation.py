"""A finished run as a moving picture: both panes fill in, in the time of their clocks."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from PIL import Image, ImageDraw, ImageFont

from recap.pictures import FAINT, INK
from recap.pipeline import GREY
from recap.studio.record import Record

RATE = 12.5  # frames a second
LONGEST = 15.0  # seconds; longer runs are shown faster, and it is said how much
HELD = 2.5  # seconds for the last frame
MARGIN, GAP, BETWEEN = 20, 6, 24
HEAD, FOOT = 40, 40  # pixels above and below the images of a pane
ACCENT, TRACK, WHITE = (37, 99, 235), (226, 228, 233), (255, 255, 255)
VEIL = (round(GREY * 255),) * 3  # what is not decoded yet
QUALITY = 80  # of WebP
Picture = Image.Image


@dataclass(slots=True)
class Track:
    """What a pane shows over time."""

    title: str
    images: int
    end: float  # of its clock
    shown: list[tuple[float, int, Picture]]  # clock, image, picture; by time
    done: list[tuple[float, float]]  # clock, share of the sub-steps; by time


def animated(record: Record, form: str) -> bytes:
    """The bytes of a GIF or WebP file."""
    frames, duration = list(scenes(record)), round(1000 / RATE)
    durations = [duration] * (len(frames) - 1) + [round(1000 * HELD)]
    more = {"save_all": True, "loop": 0, "duration": durations}
    file = io.BytesIO()
    if form == "webp":
        frames[0].save(file, "WEBP", append_images=frames[1:], quality=QUALITY, method=2, **more)
    else:
        frames = with_palette(frames)
        frames[0].save(file, "GIF", append_images=frames[1:], optimize=False, **more)
    return file.getvalue()


def with_palette(frames: Sequence[Picture]) -> list[Picture]:
    """Frames in the same few colours, which keeps them from flickering; those of lettering and of grey are exact."""
    exact = [WHITE, VEIL, INK, FAINT, ACCENT, TRACK]
    few = [frames[round(place * (len(frames) - 1) / 3)] for place in range(4)]
    width, height = frames[0].size
    sample = Image.new("RGB", (width, height * len(few)))
    for number, frame in enumerate(few):
        sample.paste(frame, (0, number * height))
    found = sample.quantize(256 - len(exact), Image.Quantize.MEDIANCUT).getpalette() or []
    palette = Image.new("P", (1, 1))
    palette.putpalette([*chain.from_iterable(exact), *found[: 3 * (256 - len(exact))]])
    return [frame.quantize(palette=palette, dither=Image.Dither.FLOYDSTEINBERG) for frame in frames]


def scenes(record: Record) -> Iterator[Picture]:
    """The frames in turn, at an even pace."""
    tracks = [track_of(record, lane.name) for lane in record.job.lanes]
    side = record.job.entry.blank.side
    tile = side * max(1, round((256 if tracks[0].images == 1 else 160) / side))
    end = max(track.end for track in tracks)
    speed = max(1.0, end / LONGEST)
    note = caption(record) + (f"   shown {speed:.1f} times as fast" if speed > 1 else "")
    stage = Stage(tracks, tile, note)
    for index in range(math.ceil(end / speed * RATE)):
        yield stage.at(index * speed / RATE, None)
    gain = record.speedup
    yield stage.at(end, None if gain is None else f"{gain:.2f}x")


def caption(record: Record) -> str:
    """What was drawn."""
    names = dict.fromkeys(str(each["name"] or each["label"]) for each in record.job.names() if each is not None)
    return ", ".join([record.job.entry.name, *names, f"seed {record.job.asked.seed}"])


def track_of(record: Record, pane: str) -> Track:
    lane = next(lane for lane in record.job.lanes if lane.name == pane)
    shown = [
        (event["seconds"], event["image"], Image.open(io.BytesIO(event["picture"])).convert("RGB"))
        for event in record.events
        if event["pane"] == pane and event["picture"] is not None
    ]
    frames = record.of("frame", pane)
    steps = len(lane.works) * len(lane.schedule.steps)
    done = [(event["seconds"], number / steps) for number, event in enumerate(frames, 1)]
    title = f"{pane} {lane.schedule}" + ("" if lane.schedule.local else " steps")
    return Track(title, len(lane.works), record.seconds[pane], shown, done)


class Stage:
    """Draws what all tracks show at a time."""

    def __init__(self, tracks: Sequence[Track], tile: int, note: str) -> None:
        self.tracks, self.tile, self.note = tracks, tile, note
        self.columns = 1 if tracks[0].images == 1 else 2
        rows = -(-tracks[0].images // self.columns)
        self.width = self.columns * tile + (self.columns - 1) * GAP
        self.height = rows * tile + (rows - 1) * GAP
        across = len(tracks) * self.width + (len(tracks) - 1) * BETWEEN + 2 * MARGIN
        self.size = (across, MARGIN + HEAD + self.height + FOOT + 24 + MARGIN)
        self.large, self.small = ImageFont.load_default(size=18), ImageFont.load_default(size=13)

    def at(self, time: float, gain: str | None) -> Picture:
        """The picture at a time of the clocks; `gain` is what the reused pane won, once all is over."""
        sheet = Image.new("RGB", self.size, WHITE)
        draw = ImageDraw.Draw(sheet)
        for number, track in enumerate(self.tracks):
            left, top = MARGIN + number * (self.width + BETWEEN), MARGIN
            draw.text((left, top + 22), track.title, INK, self.large, anchor="ls")
            if gain is not None and number == len(self.tracks) - 1:
                draw.text((left + self.width, top + 22), gain, ACCENT, self.large, anchor="rs")
            self._tiles(sheet, track, (left, top + HEAD), time)
            below = top + HEAD + self.height + 12
            share = max((share for clock, share in track.done if clock <= time), default=0.0)
            draw.rectangle((left, below, left + self.width - 1, below + 4), TRACK)
            if share:
                draw.rectangle((left, below, left + max(1, round(share * self.width)) - 1, below + 4), ACCENT)
            over = time >= track.end
            clock = f"{min(time, track.end):.2f} s"
            draw.text((left, below + 22), clock, INK if over else FAINT, self.small, anchor="ls")
            if over:
                draw.text((left + self.width, below + 22), "done", ACCENT, self.small, anchor="rs")
        draw.text((MARGIN, self.size[1] - MARGIN + 2), self.note, FAINT, self.small, anchor="ls")
        return sheet

    def _tiles(self, sheet: Picture, track: Track, corner: tuple[int, int], time: float) -> None:
        latest = {image: picture for clock, image, picture in track.shown if clock <= time}
        for image in range(track.images):
            row, column = divmod(image, self.columns)
            place = (corner[0] + column * (self.tile + GAP), corner[1] + row * (self.tile + GAP))
            picture = latest.get(image)
            if picture is None:
                sheet.paste(VEIL, (*place, place[0] + self.tile, place[1] + self.tile))
            else:
                sheet.paste(picture.resize((self.tile, self.tile), Image.Resampling.LANCZOS), place)
