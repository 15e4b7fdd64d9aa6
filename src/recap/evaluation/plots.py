"""Pictures of measurements; needs matplotlib, which is imported only when one is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recap.evaluation.drift import Drift
from recap.evaluation.error import LocalError
from recap.evaluation.sweep import SweepRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

INK, GRID = "#333333", "#dddddd"
MARKS = ["o", "s", "^", "D"]
COLOURS = {"plain": "#7a7f87", "reused": "#c8501e"}


def plot_drift(drift: Drift, path: Path, title: str) -> None:
    """One curve for each context: similarity against the update, shaded by the spread over layers."""
    figure, axes = _axes(title, "tokens shown after the context, n", "cosine similarity of context features")
    from matplotlib import colormaps

    shades = colormaps["viridis"]
    for index, context in enumerate(drift.contexts):
        colour = shades(0.9 * index / max(1, len(drift.contexts) - 1))
        mean, spread = drift.mean[index], drift.spread[index]
        updates = drift.updates[: len(mean)]
        low, high = zip(*((m - s, min(1.0, m + s)) for m, s in zip(mean, spread, strict=True)), strict=True)
        axes.fill_between(updates, low, high, color=colour, alpha=0.12, linewidth=0)
        axes.plot(updates, mean, color=colour, marker="o", markersize=3.5, linewidth=1.4, label=f"{context}")
    axes.set_xscale("log", base=2)
    axes.set_xticks(drift.updates, [str(n) for n in drift.updates])
    axes.minorticks_off()
    axes.legend(title="context K", fontsize=8, title_fontsize=8, frameon=False, ncols=2, loc="best")
    figure.savefig(path)


def plot_error(rows: Sequence[LocalError], path: Path, title: str, ylabel: str) -> None:
    """Error of every local evaluation against the share of tokens known to it: mean and worst image."""
    figure, axes = _axes(title, "share of tokens known", ylabel)
    share = [row.decoded for row in rows]
    worst, mean = [row.max for row in rows], [row.mean for row in rows]
    for values, name, colour in ((worst, "worst image", "plain"), (mean, "mean over images", "reused")):
        axes.plot(share, values, color=COLOURS[colour], label=name, marker="o", markersize=3.5, linewidth=1.4)
    axes.set_xlim(0, 1)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.legend(fontsize=8, frameon=False)
    figure.savefig(path)


def plot_front(rows: Sequence[SweepRow], path: Path, title: str) -> None:
    """Quality against time: every schedule a point, those on the front labelled and joined by a line."""
    figure, axes = _axes(title, "seconds an image", "FID")
    rows = sorted(rows, key=lambda row: row.seconds)
    for kind, colour in COLOURS.items():
        these = [row for row in rows if row.reused == (kind == "reused")]
        for row in these:
            axes.errorbar(row.seconds, row.quality, row.spread, color=colour, alpha=0.5, capsize=2, linewidth=1)
        if these:
            x, y = [row.seconds for row in these], [row.quality for row in these]
            axes.scatter(x, y, s=26, color=colour, label=kind, zorder=3, edgecolors="white", linewidths=0.6)
    front = [row for row in rows if row.front]
    x, y = [row.seconds for row in front], [row.quality for row in front]
    axes.plot(x, y, color=INK, linewidth=1, alpha=0.55, zorder=2, label="best")
    words: dict[str, Any] = {
        "textcoords": "offset points",
        "ha": "right",
        "va": "top",
        "rotation": 20,
        "rotation_mode": "anchor",
    }
    for row in front:  # whose lower left no other point is in
        axes.annotate(row.schedule, (row.seconds, row.quality), (-4, -4), fontsize=7, color=INK, **words)
    axes.margins(0.08, 0.2)  # room for the last words
    axes.legend(fontsize=8, frameon=False)
    figure.savefig(path)


def plot_texts(rows: Sequence[SweepRow], path: Path, title: str) -> None:
    """Perplexity and entropy against time; plain schedules of numbers of steps alone are joined by a line."""
    require()
    from matplotlib.ticker import LogLocator, NullFormatter

    judged = [row for row in rows if "perplexity" in row.figures]
    panels = {"perplexity": judged, "entropy": list(rows)} if judged else {"entropy": list(rows)}
    figure, first = _axes(title, "seconds a text", next(iter(panels)), len(panels))
    ways = list(dict.fromkeys(row.alike for row in rows))
    for axes, (name, known) in zip(figure.axes, panels.items(), strict=True):
        axes.set_ylabel(name, fontsize=9, color=INK)
        scales: list[tuple[Axis, Callable[[str], None], list[float]]] = [
            (axes.xaxis, axes.set_xscale, [row.seconds for row in known])
        ]
        if name == "perplexity":
            scales.append((axes.yaxis, axes.set_yscale, [row.figures[name] for row in known]))
        for axis, set_scale, values in scales:
            if len({*values}) > 1:  # one alone has no scale
                set_scale("log")
                axis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
                axis.set_major_formatter(lambda value, _: f"{value:g}")
                axis.set_minor_formatter(NullFormatter())
        for kind, colour in COLOURS.items():
            for way, mark in zip(ways, MARKS * len(ways), strict=False):
                these = [row for row in known if row.alike == way and row.reused == (kind == "reused")]
                these.sort(key=lambda row: row.seconds)
                x, y = [row.seconds for row in these], [row.figures[name] for row in these]
                errors = [row.figures[f"{name}_error"] for row in these]
                if these:
                    label = kind if len(ways) == 1 else f"{kind}, {way}"
                    axes.errorbar(x, y, errors, fmt=mark, ms=4, color=colour, label=label, capsize=2, lw=1)
                simple = [(row.seconds, row.figures[name]) for row in these if _label(row).isdecimal()]
                if simple and kind == "plain":
                    axes.plot(*zip(*simple, strict=True), color=colour, linewidth=1, alpha=0.55)
        words: dict[str, Any] = {"textcoords": "offset points", "rotation_mode": "anchor", "fontsize": 6}
        for row in known:  # words of reused ones go down
            place, side = (row.seconds, row.figures[name]), -1 if row.reused else 1
            axes.annotate(_label(row), place, (3, 5 * side), rotation=30 * side, va="center", color=INK, **words)
        axes.margins(0.08, 0.15)  # room for the last words
    first.legend(fontsize=8, frameon=False)
    figure.savefig(path)


def _label(row: SweepRow) -> str:
    """A schedule in few words; its temperature is in the legend."""
    numbers, _, rest = row.schedule.partition(":")
    options = [part.removeprefix("preset=") for part in rest.split(",") if part and "temperature=" not in part]
    return " ".join([*filter(None, [numbers]), *options])


def require() -> None:
    """Refuse to go on where nothing can be drawn."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise ValueError('plots need matplotlib; install it with: pip install "recap-mgm[eval]"') from error


def _axes(title: str, xlabel: str, ylabel: str, number: int = 1) -> tuple[Figure, Axes]:
    """Empty plots side by side in our style, without a window or any state of pyplot's, and the first of them."""
    require()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4 * number, 4.2), dpi=150, layout="constrained", facecolor="white")
    for place in range(number):
        axes = figure.add_subplot(1, number, place + 1)
        axes.set_title(title, fontsize=10, color=INK)
        axes.set_xlabel(xlabel, fontsize=9, color=INK)
        axes.set_ylabel(ylabel, fontsize=9, color=INK)
        axes.grid(color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=8, color=GRID, labelcolor=INK)
        for side, spine in axes.spines.items():
            spine.set_visible(side in ("left", "bottom"))
            spine.set_color(GRID)
    return figure, figure.axes[0]
