"""A schedule as a picture: one bar for each sub-step, as high as it decodes tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from recap.core.schedule import Schedule

FULL, LOCAL = "#5b8fd0", "#e8863a"
FAINT = 0.3
HEIGHT = 44  # pixels of the highest bar
WIDEST, NARROWEST = 640, 160


def timeline_html(schedule: Schedule) -> str:
    """The timeline of a schedule under a line that explains it."""
    sizes = schedule.sizes
    each = f"{min(sizes)}" if len(set(sizes)) == 1 else f"{min(sizes)} to {max(sizes)}"
    known = f", {schedule.known} known before" if schedule.known else ""
    local = f", {_swatch(LOCAL)} {schedule.local} local" if schedule.local else ""
    return (
        f'<div style="line-height:1.6"><b>{schedule}</b>&ensp;{_swatch(FULL)} {schedule.full} full{local}&ensp;'
        f"{schedule.tokens} tokens{known}, {each} a sub-step</div>{timeline_svg(schedule)}"
    )


def timeline_svg(schedule: Schedule, done: int | None = None) -> str:
    """The bars alone; those after sub-step `done` are faint."""
    kinds = [index > 0 for group in schedule for index in range(len(group.steps))]
    sizes, count = schedule.sizes, len(kinds)
    width = min(WIDEST, max(NARROWEST, 10 * count))
    step, most = width / count, max(sizes)
    paths: dict[tuple[str, bool], str] = {}
    for place, (local, size) in enumerate(zip(kinds, sizes, strict=True)):
        high = round(2 + (HEIGHT - 2) * size / most, 1)
        key = (LOCAL if local else FULL, done is None or place < done)
        bar = f"M{place * step:.5g} {HEIGHT}v-{high:g}h{0.8 * step:.3g}v{high:g}z"
        paths[key] = paths.get(key, "") + bar
    drawn = "".join(
        f'<path fill="{colour}" opacity="{1 if past else FAINT}" d="{path}"/>'
        for (colour, past), path in paths.items()
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" width="{width}" '
        f'style="max-width:100%" role="img"><title>{schedule}: tokens of each sub-step</title>{drawn}</svg>'
    )


def _swatch(colour: str) -> str:
    return f'<span style="color:{colour}">&#9632;</span>'
