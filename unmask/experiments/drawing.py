"""Figures for print and for light and dark pages: opaque white, colour-blind safe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from io import BytesIO
from itertools import pairwise
from math import ceil, cos, hypot, isinf, pi, sin
from pathlib import Path
from textwrap import fill, wrap
from typing import TYPE_CHECKING, Any

from unmask.experiments.stats import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

# Okabe and Ito's palette, without yellow, which is invisible on white
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#7F7F7F")
# colour, marker and marker size of each method and its variants
METHODS = {
    "LESS": ("#D55E00", "*", 13.0),
    "First mask": ("#0072B2", "D", 7.5),
    "Base": ("#7F7F7F", "o", 7.5),
    "KLASS": ("#009E73", "s", 7.0),
    "Threshold": ("#CC79A7", "^", 7.5),
    "Prophet": ("#E69F00", "v", 7.5),
    "": ("#56B4E9", "h", 7.0),  # any other method
}
# colour and marker of tasks; the colours are from Tol's muted palette, and no method has them
TASKS = (("#332288", "o"), ("#882255", "s"), ("#44AA99", "^"), ("#999933", "D"))
STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
}
DPI = 160
WIDTH = 12  # characters of a title per inch
COLUMN = 1.9  # width of a legend column in inches
CEILING = 101.0  # percent; above 100, so that 100 is finite on a logarithmic axis of errors
TICKS = (0, 20, 40, 60, 70, 80, 85, 90, 95, 98, 100)


def check_matplotlib() -> None:
    """Raise if matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise ValueError("figures need matplotlib; pip install 'unmask[experiments]'")


def panels(
    count: int, *, width: float = 4.2, height: float = 3.1, columns: int = 2
) -> tuple[Figure, list[Axes]]:
    """Return a figure with `count` panels."""
    check_matplotlib()
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    across = min(count, columns)
    down = -(-count // across)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width * across, height * down), layout="constrained")
        FigureCanvasAgg(figure)
        axes = [figure.add_subplot(down, across, number + 1) for number in range(count)]
    return figure, axes


def save_png(figure: Figure, path: Path) -> Path:
    """Write a figure as a small PNG with a palette. Equal figures give equal bytes."""
    from PIL import Image

    drawn = BytesIO()
    figure.savefig(drawn, dpi=DPI, facecolor="white", format="png")
    with Image.open(drawn) as image:
        plain = image.convert("RGB")
    shades = plain.quantize(method=Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE)
    shades.save(path, optimize=True)
    return path


def method(label: str) -> str:
    """Return the method that a label begins with, such as LESS for "LESS, released"."""
    return next(name for name in METHODS if label.startswith(name))


def colour(label: str) -> str:
    """Return the colour of a method, or a lighter one for a variant of it."""
    own = METHODS[method(label)][0]
    return own if label in METHODS else light(own)


def light(colour: str) -> str:
    """Return a colour mixed with white."""
    from matplotlib.colors import to_hex, to_rgb

    red, green, blue = to_rgb(colour)
    return to_hex(((1 + red) / 2, (1 + green) / 2, (1 + blue) / 2))


def look(label: str, *, filled: bool | None = None) -> dict[str, Any]:
    """Return the colour and marker of a method. A variant is hollow unless `filled` says otherwise."""
    own, marker, size = METHODS[method(label)]
    solid = label in METHODS if filled is None else filled
    return {
        "color": own,
        "marker": marker,
        "markersize": size if label in METHODS else 0.8 * size,
        "markerfacecolor": own if solid else "white",
        "markeredgewidth": 1.2,
        "zorder": 4 if label in METHODS else 3,
    }


def task_look(number: int) -> dict[str, Any]:
    """Return the colour and marker of the n-th task of a figure."""
    own, marker = TASKS[number % len(TASKS)]
    return {"color": own, "marker": marker, "markersize": 4, "linewidth": 1.4}


def title(axes: Axes, subject: str, message: str) -> None:
    """Write the subject and, below it, the message above a panel."""
    grid = axes.get_subplotspec().get_gridspec()  # type: ignore[union-attr]
    width = int(WIDTH * axes.figure.get_figwidth() / grid.ncols)  # type: ignore[union-attr]
    whole = message.replace(" = ", "\u00a0=\u00a0").replace(" %", "\u00a0%")  # no line break inside
    lines = [part for line in whole.splitlines() for part in wrap(line, width)]
    axes.set_title(subject, loc="left", fontsize=10, fontweight="bold", pad=6 + 11 * len(lines))
    axes.annotate("\n".join(lines), (0, 1), (0, 5), "axes fraction", "offset points", fontsize=8.5)


def legend(figure: Figure, axes: Axes, *, columns: int = 4) -> None:
    """Add one legend below all panels, with each name once."""
    handles, labels = axes.get_legend_handles_labels()
    named = dict(zip(labels, handles, strict=True))
    fitting = min(columns, int(figure.get_figwidth() // COLUMN))
    figure.legend(
        list(named.values()),
        list(named),
        loc="outside lower center",
        ncols=fitting,
        frameon=False,
        fontsize=8,
    )


def log_axis(axes: Axes) -> None:
    """Make the x axis logarithmic, with plain numbers: 1, 2, 5, 10 ..."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def accuracy_axis(axes: Axes) -> None:
    """Scale the y axis by the logarithm of the error, so that one bad method does not squeeze the others."""
    import numpy as np
    from matplotlib.ticker import FixedLocator, FuncFormatter

    def up(accuracy: Any) -> Any:
        return -np.log10(np.maximum(CEILING - accuracy, 0.1))

    def back(height: Any) -> Any:
        # without rounding, the axis of a single value would become a tiny range
        return np.round(CEILING - 10.0**-height, 9)

    axes.set_yscale("function", functions=(up, back))
    axes.yaxis.set_major_locator(FixedLocator(TICKS))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_ylabel("mean accuracy, % (log errors)")


def name_points(figure: Figure, axes: Axes, names: Mapping[str, tuple[float, float]]) -> None:
    """Write a name beside each point, where it covers the fewest points, lines and other names.

    Call it last, because it freezes the layout of the figure.
    """
    from matplotlib.patheffects import withStroke

    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    dots, frame = _ink(axes), axes.bbox.padded(-8)
    taken: list[Bbox] = []
    for name, point in sorted(names.items(), key=lambda item: (item[0] not in STRONG, item[1], item[0])):
        text = axes.annotate(
            name,
            point,
            (0, 0),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=7.5,
            fontweight="bold" if name in STRONG else "normal",
            color=METHODS[name][0] if name in STRONG else "#222222",
            path_effects=[withStroke(linewidth=1.5, foreground="white")],  # readable across a line
            arrowprops={"arrowstyle": "-", "color": "#999999", "linewidth": 0.5, "shrinkA": 1, "shrinkB": 4},
            zorder=5,
        )
        extent = text.get_window_extent()
        middle = axes.transData.transform(point)
        rivals = [axes.transData.transform(other) for other in names.values() if other != point]
        box = min(
            (_moved(extent, *offset, figure.dpi / 72) for offset in OFFSETS),
            key=lambda place: _clutter(place, frame, middle, rivals, dots, taken),
        )
        text.set_position(
            (
                ((box.x0 + box.x1) / 2 - middle[0]) * 72 / figure.dpi,
                ((box.y0 + box.y1) / 2 - middle[1]) * 72 / figure.dpi,
            )
        )
        taken.append(box)


STRONG = ("LESS", "First mask")  # the methods whose names stand out
# where a name may go, relative to its point, in points, nearest first
OFFSETS = [
    (1.6 * reach * cos(turn * pi / 8), reach * sin(turn * pi / 8))
    for reach in (9, 14, 20, 28, 38, 50, 64, 80, 100)
    for turn in range(16)
]


def _ink(axes: Axes) -> Any:
    """Return pixels that names should not cover: around markers, and along lines and intervals."""
    import numpy as np
    from matplotlib.collections import LineCollection

    strokes: list[Any] = [line.get_xydata() for line in axes.lines if line.get_transform() == axes.transData]
    for collection in axes.collections:
        if isinstance(collection, LineCollection):  # intervals
            strokes += collection.get_segments()
    dots = []
    for stroke in strokes:
        ends = axes.transData.transform(stroke)
        for start, end in pairwise(ends):
            dots += list(np.linspace(start, end, ceil(hypot(*(end - start)) / 8) + 1))
    for line in axes.lines:
        if line.get_marker() not in ("None", "|", "_"):  # skip the caps of intervals
            radius = line.get_markersize() * axes.figure.dpi / 144
            ring = [(radius * cos(turn * pi / 4), radius * sin(turn * pi / 4)) for turn in range(8)]
            dots += [
                end + np.array(step) for end in axes.transData.transform(line.get_xydata()) for step in ring
            ]
    return np.array(dots)


def _moved(box: Bbox, right: float, up: float, scale: float) -> Bbox:
    # a name to the left or right of its point ends or starts at the offset; one above or below is centred
    half = 0.5 * box.width * max(-1.0, min(1.0, right / 14))
    return box.translated(right * scale + half, up * scale)


def _clutter(box: Bbox, frame: Bbox, own: Any, rivals: Any, dots: Any, taken: Sequence[Bbox]) -> float:
    """Return the penalty of a box for a name. It should cover nothing and be near its own point alone."""
    wide = box.padded(2)
    covered = sum(((dots > (wide.x0, wide.y0)) & (dots < (wide.x1, wide.y1))).all(1)) if len(dots) else 0
    away = _distance(box, own)
    nearer = sum(_distance(box, rival) <= away for rival in rivals)
    overlaps = sum(wide.overlaps(other) for other in taken)
    inside = frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
    return float(covered + 0.05 * away + 6 * nearer + 200 * overlaps + 500 * (not inside))


def _distance(box: Bbox, point: Any) -> float:
    x, y = point
    return hypot(max(box.x0 - x, x - box.x1, 0), max(box.y0 - y, y - box.y1, 0))


def bars(
    axes: Axes,
    values: Mapping[str, Estimate],
    colours: Sequence[str],
    *,
    label: str,
    digits: int = 1,
    zero: bool = False,
) -> None:
    """Draw horizontal bars with intervals and numbers, first on top. `zero` adds signs and a zero line."""
    positions = list(range(len(values)))[::-1]
    estimates = list(values.values())
    reaches = [reach(estimate) for estimate in estimates]
    axes.barh(positions, [estimate.value for estimate in estimates], color=list(colours), height=0.62)
    axes.errorbar(
        [estimate.value for estimate in estimates],
        positions,
        xerr=[[low for [low], _ in reaches], [high for _, [high] in reaches]],
        fmt="none",
        ecolor="#333333",
        capsize=2.5,
        linewidth=1,
    )
    for y, estimate, ([low], [high]) in zip(positions, estimates, reaches, strict=True):
        right = estimate.value >= 0
        axes.annotate(
            f"{estimate.value:{'+' if zero else ''}.{digits}f}",
            (estimate.value + high if right else estimate.value - low, y),
            (4 if right else -4, 0),
            textcoords="offset points",
            ha="left" if right else "right",
            va="center",
            fontsize=7.5,
        )
    axes.set_yticks(positions, [fill(name, 18) for name in values])
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(label)
    axes.margins(x=0.16)  # room for the numbers
    if zero:
        axes.use_sticky_edges = False  # else bars that all point one way start at the frame
        axes.autoscale_view(scaley=False)
        axes.axvline(0, color="#333333", linewidth=0.8)


def points(axes: Axes, series: Mapping[str, tuple[Estimate, Estimate]]) -> None:
    """Draw the accuracy of methods over their forwards, with intervals in both directions."""
    accuracy_axis(axes)
    for name, (cost, quality) in series.items():
        axes.errorbar(
            cost.value,
            quality.value,
            xerr=reach(cost),
            yerr=reach(quality),
            capsize=2,
            linewidth=1,
            **look(name),
        )
    log_axis(axes)
    axes.set_xlabel("forward passes per sample (log)")


def reach(estimate: Estimate) -> list[list[float]]:
    """Return how far an error bar goes down and up, or zeros if there is no interval."""
    if isinf(estimate.low):
        return [[0.0], [0.0]]
    # the interval of a skewed bootstrap may not contain the value
    return [[max(0.0, estimate.value - estimate.low)], [max(0.0, estimate.high - estimate.value)]]


def violins(axes: Axes, groups: Sequence[Sequence[float]], labels: Sequence[str], colour: str) -> None:
    """Draw a violin with a box inside for each group. A group of equal numbers has only a box."""
    positions = list(range(1, len(groups) + 1))
    wide = [
        (position, group)
        for position, group in zip(positions, groups, strict=True)
        if max(group) > min(group)
    ]
    if wide:
        drawn = axes.violinplot(
            [group for _, group in wide], [position for position, _ in wide], showextrema=False, widths=0.8
        )
        for body in drawn["bodies"]:  # type: ignore[attr-defined]
            body.set_facecolor(colour)
            body.set_alpha(0.4)
    axes.boxplot(
        [list(group) for group in groups],
        positions=positions,
        widths=0.16,
        showfliers=False,
        medianprops={"color": colour, "linewidth": 2},
    )
    axes.set_xticks(positions, list(labels))
    axes.grid(visible=False, axis="x")
