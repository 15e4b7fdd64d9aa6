"""Pictures of measurements, as .png or .svg; needs matplotlib, which is imported only when one is drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from recap.evaluation.drift import Drift
from recap.evaluation.error import LocalError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

INK, GRID = "#333333", "#dddddd"
COLOURS = {"plain": "#7a7f87", "reused": "#c8501e"}
SUFFIXES = (".png", ".svg")
# where a label may stand, in points from its point: near places first
PLACES = [
    (6, 3), (-6, 3), (6, -9), (-6, -9), (0, 7), (0, -13), (8, 11), (-8, 11), (8, -16), (-8, -16),
    (0, 15), (0, -22), (18, 3), (-18, 3), (0, 24), (0, -31), (20, 18), (-20, 18), (20, -24), (-20, -24),
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Point:
    """One run in a plot of quality against time."""

    x: float
    y: float
    label: str  # such as "48+16"
    kind: str = "plain"  # or "reused"
    front: bool = False  # whether no other run is better in both
    error: float | None = None  # half the length of the error bar


def plot_drift(drift: Drift, path: str | Path, *, title: str = "") -> Path:
    """One curve for each context: similarity against the update, shaded by the spread over layers."""
    figure, axes = _axes(path, title, "tokens shown after the context, n", "cosine similarity of context features")
    from matplotlib import colormaps

    shades = colormaps["viridis"]
    for index, context in enumerate(drift.contexts):
        colour = shades(0.9 * index / max(1, len(drift.contexts) - 1))
        mean, spread = drift.mean(context), drift.spread(context)
        updates = drift.updates[: len(mean)]
        low, high = zip(*((m - s, min(1.0, m + s)) for m, s in zip(mean, spread, strict=True)), strict=True)
        axes.fill_between(updates, low, high, color=colour, alpha=0.12, linewidth=0)
        axes.plot(updates, mean, color=colour, marker="o", markersize=3.5, linewidth=1.4, label=f"{context}")
    # linear between 0 and 1, so that an update of nothing has a place
    axes.set_xscale("symlog", base=2, linthresh=1) if 0 in drift.updates else axes.set_xscale("log", base=2)
    axes.set_xticks(drift.updates, [str(n) for n in drift.updates])
    axes.minorticks_off()
    axes.legend(title="context K", fontsize=8, title_fontsize=8, frameon=False, ncols=2, loc="best")
    return _save(figure, path)


def plot_error(
    rows: Sequence[LocalError], path: str | Path, *, title: str = "", ylabel: str = "error of local evaluations"
) -> Path:
    """Error of every local evaluation against the share of tokens known to it: mean and worst image."""
    if not rows:
        raise ValueError("there are no local evaluations to plot; measure a schedule that has some")
    figure, axes = _axes(path, title, "share of tokens known", ylabel)
    share = [row.decoded for row in rows]
    worst, mean = [row.max for row in rows], [row.mean for row in rows]
    for values, name, colour in ((worst, "worst image", "plain"), (mean, "mean over images", "reused")):
        axes.plot(share, values, color=COLOURS[colour], label=name, marker="o", markersize=3.5, linewidth=1.4)
    axes.set_xlim(0, 1)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.legend(fontsize=8, frameon=False)
    return _save(figure, path)


def plot_front(
    points: Sequence[Point],
    path: str | Path,
    *,
    title: str = "",
    xlabel: str = "seconds an image",
    ylabel: str = "FID",
    reference: Sequence[tuple[str, float]] = (),
    log: bool = False,
) -> Path:
    """Quality against time: every run a labelled point, those on the front joined by a line of their kind.

    `reference` are horizontal lines, each a name and a height. `log` asks for a logarithmic time axis.
    """
    if not points:
        raise ValueError("there are no points to plot; give at least one run")
    odd = {point.kind for point in points} - COLOURS.keys()
    if odd:
        raise ValueError(f"kinds of points are {sorted(odd)}; each must be one of {', '.join(COLOURS)}")
    figure, axes = _axes(path, title, xlabel, ylabel)
    if log:
        from matplotlib.ticker import LogLocator, NullLocator

        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter("{x:g}")
    for kind, colour in COLOURS.items():
        these = sorted((point for point in points if point.kind == kind), key=lambda point: point.x)
        for point in these:
            axes.errorbar(point.x, point.y, yerr=point.error, color=colour, alpha=0.5, capsize=2, linewidth=1)
        if these:
            x, y = [point.x for point in these], [point.y for point in these]
            axes.scatter(x, y, s=26, color=colour, label=kind, zorder=3, edgecolors="white", linewidths=0.6)
    front = sorted((point for point in points if point.front), key=lambda point: point.x)
    if front:
        x, y = [point.x for point in front], [point.y for point in front]
        axes.plot(x, y, color=INK, linewidth=1, alpha=0.55, zorder=2, label="best")
    for name, height in reference:
        axes.axhline(height, color=INK, linewidth=0.8, linestyle=(0, (4, 3)), alpha=0.6)
        axes.annotate(
            name, (0, height), xycoords=("axes fraction", "data"), xytext=(3, -3), textcoords="offset points",
            va="top", fontsize=7, color=INK,
        )  # fmt: skip
    axes.margins(0.08, 0.1)
    axes.legend(fontsize=8, frameon=False)
    _label(figure, axes, points, [height for _, height in reference])
    return _save(figure, path)


def require() -> None:
    """Refuse to go on where nothing can be drawn."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise ValueError('plots need matplotlib; install it with: pip install "recap-mgm[eval]"') from error


def _axes(path: str | Path, title: str, xlabel: str, ylabel: str) -> tuple[Figure, Axes]:
    """An empty plot in our style, without a window or any state of pyplot's."""
    if Path(path).suffix not in SUFFIXES:
        raise ValueError(f"{path} is to be a plot; its name must end in {' or '.join(SUFFIXES)}")
    require()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2), dpi=150, layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=10, color=INK)
    axes.set_xlabel(xlabel, fontsize=9, color=INK)
    axes.set_ylabel(ylabel, fontsize=9, color=INK)
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8, color=GRID, labelcolor=INK)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(GRID)
    return figure, axes


def _save(figure: Figure, path: str | Path) -> Path:
    from matplotlib import rc_context

    path = Path(path)
    # the same numbers give the same file
    with rc_context({"svg.hashsalt": "recap"}):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    return path


def _label(figure: Figure, axes: Axes, points: Sequence[Point], heights: Sequence[float]) -> None:
    """Write every point's label where it covers nothing else, as near as that allows."""
    from matplotlib.patheffects import withStroke

    figure.draw_without_rendering()  # from now on, positions on the page are known
    taken = _obstacles(axes, points, heights)
    inside = axes.get_window_extent()
    for point in sorted(points, key=lambda point: point.x):
        text = axes.annotate(
            point.label, (point.x, point.y), (0, 0), textcoords="offset points", fontsize=7,
            color=COLOURS[point.kind], zorder=4, path_effects=[withStroke(linewidth=2, foreground="white")],
        )  # fmt: skip
        found: list[tuple[int, int, Bbox]] = []
        for rank, place in enumerate(PLACES):
            text.set(position=place, ha=_side(place))
            box = text.get_window_extent()
            outside = not (inside.contains(box.x0, box.y0) and inside.contains(box.x1, box.y1))
            found.append((sum(bool(box.overlaps(other)) for other in taken) + 9 * outside, rank, box))
        _, rank, box = min(found, key=lambda entry: entry[:2])
        text.set(position=PLACES[rank], ha=_side(PLACES[rank]))
        taken.append(box)


def _side(place: tuple[int, int]) -> str:
    """Which end of a label is nearest to its point."""
    return "center" if place[0] == 0 else "left" if place[0] > 0 else "right"


def _obstacles(axes: Axes, points: Sequence[Point], heights: Sequence[float]) -> list[Bbox]:
    """Boxes on the page that no label should cover: points, error bars, the line of the front, references."""
    from matplotlib.transforms import Bbox

    def page(x: float, y: float) -> tuple[float, float]:
        x, y = axes.transData.transform((x, y))
        return float(x), float(y)

    boxes, front = [], []
    for point in sorted(points, key=lambda point: point.x):
        x, y = page(point.x, point.y)
        boxes.append(Bbox.from_extents(x - 5, y - 5, x + 5, y + 5))
        if point.error:
            low, high = page(point.x, point.y - point.error)[1], page(point.x, point.y + point.error)[1]
            boxes.append(Bbox.from_extents(x - 4, low, x + 4, high))
        if point.front:
            front.append((x, y))
    for (x0, y0), (x1, y1) in pairwise(front):
        dots = max(2, int(math.dist((x0, y0), (x1, y1)) / 3))
        for i in range(dots):
            x, y = x0 + (x1 - x0) * i / dots, y0 + (y1 - y0) * i / dots
            # a long stretch under a label is worse than one crossing, and counts more than once
            boxes.append(Bbox.from_extents(x - 1, y - 1, x + 1, y + 1))
    left, right = axes.get_window_extent().intervalx
    for height in heights:
        y = page(points[0].x, height)[1]
        boxes.append(Bbox.from_extents(left, y - 1, right, y + 1))
    return boxes
