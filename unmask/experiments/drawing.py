"""Figures for print and for light and dark pages: opaque white, colour-blind safe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import cos, isinf, pi, sin
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.experiments.stats import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

# Okabe and Ito's palette, without yellow, which is invisible on white
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#7F7F7F")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
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
COLUMN = 1.9  # width of a legend's column, inches
CEILING = 101.0  # percent; above 100, so that 100 is finite on a logarithmic axis of errors
TICKS = (0, 20, 40, 60, 70, 80, 85, 90, 95, 98, 100)


def panels(
    count: int, *, width: float = 4.2, height: float = 3.1, columns: int = 2
) -> tuple[Figure, list[Axes]]:
    """Return a figure with `count` panels."""
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError("figures need matplotlib; pip install 'unmask[experiments]'") from error
    across = min(count, columns)
    down = -(-count // across)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width * across, height * down), layout="constrained")
        FigureCanvasAgg(figure)
        axes = [figure.add_subplot(down, across, number + 1) for number in range(count)]
    return figure, axes


def save_png(figure: Figure, path: Path) -> Path:
    """Write a figure. The same figure gives the same bytes."""
    figure.savefig(path, dpi=DPI, facecolor="white", metadata={"Software": None})
    return path


def look(number: int) -> dict[str, Any]:
    """Return colour and marker of the n-th series of a figure."""
    turn = number // len(COLOURS)  # a repeated colour gets another marker
    return {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[(number + 3 * turn) % len(MARKERS)]}


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
        return np.round(CEILING - 10.0**-height, 9)  # rounded, so that a single value is not a tiny range

    axes.set_yscale("function", functions=(up, back))
    axes.yaxis.set_major_locator(FixedLocator(TICKS))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_ylabel("mean accuracy, % (log errors)")


def name_points(
    figure: Figure,
    axes: Axes,
    names: Mapping[str, tuple[float, float]],
    obstacles: Sequence[tuple[float, float]],
) -> None:
    """Write a name beside each point, where it covers no obstacle and no other name.

    Call it last: it fixes the layout of the figure.
    """
    from matplotlib.patheffects import withStroke

    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    dots = axes.transData.transform(obstacles)
    taken: list[Bbox] = []
    for name, point in sorted(names.items(), key=lambda item: (item[1], item[0])):
        text = axes.annotate(
            name,
            point,
            (0, 0),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=7,
            path_effects=[withStroke(linewidth=2.5, foreground="white")],  # readable across a line
            arrowprops={"arrowstyle": "-", "color": "#999999", "linewidth": 0.5, "shrinkA": 1, "shrinkB": 3},
        )
        extent = text.get_window_extent()
        box = min(
            (_moved(extent, *offset, figure.dpi / 72) for offset in OFFSETS),
            key=lambda place: _clutter(place, axes.bbox, dots, taken),
        )
        middle = axes.transData.transform(point)
        text.set_position(
            (
                ((box.x0 + box.x1) / 2 - middle[0]) * 72 / figure.dpi,
                ((box.y0 + box.y1) / 2 - middle[1]) * 72 / figure.dpi,
            )
        )
        taken.append(box)


# from near to far, in points
OFFSETS = [
    (1.6 * reach * cos(turn * pi / 8), reach * sin(turn * pi / 8))
    for reach in (9, 14, 20, 28, 38, 50, 64, 80, 100)
    for turn in range(16)
]


def _moved(box: Bbox, right: float, up: float, scale: float) -> Bbox:
    # a name beside its point starts or ends there
    half = 0.5 * box.width * max(-1.0, min(1.0, right / 14))
    return box.translated(right * scale + half, up * scale)


def _clutter(box: Bbox, frame: Bbox, dots: Any, taken: Sequence[Bbox]) -> int:
    """Return how many points and names a box covers, the frame's edge counted as many."""
    wide = box.padded(2)
    covered = sum(bool(wide.contains(x, y)) for x, y in dots)
    inside = frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
    return covered + 2 * sum(wide.overlaps(other) for other in taken) + (0 if inside else 10)


def bars(
    axes: Axes,
    values: Mapping[str, Estimate],
    *,
    label: str,
    title: str,
    zero: bool = False,
    cycle: int = 6,
) -> None:
    """Draw horizontal bars with intervals, the first on top, in `cycle` alternating colours."""
    positions = list(range(len(values)))[::-1]
    estimates = list(values.values())
    reaches = [reach(estimate) for estimate in estimates]
    axes.barh(
        positions,
        [estimate.value for estimate in estimates],
        color=[COLOURS[number % cycle] for number in range(len(values))],
        height=0.62,
    )
    axes.errorbar(
        [estimate.value for estimate in estimates],
        positions,
        xerr=[[low for [low], _ in reaches], [high for _, [high] in reaches]],
        fmt="none",
        ecolor="#333333",
        capsize=2.5,
        linewidth=1,
    )
    axes.set_yticks(positions, list(values))
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(label)
    axes.set_title(title)
    if zero:
        axes.use_sticky_edges = False  # else bars that all point one way start at the frame
        axes.autoscale_view(scaley=False)
        axes.axvline(0, color="#333333", linewidth=0.8)


def points(axes: Axes, series: Mapping[str, tuple[Estimate, Estimate]], *, title: str) -> None:
    """Draw accuracy over forwards, with intervals in both directions."""
    accuracy_axis(axes)
    for number, (name, (cost, quality)) in enumerate(series.items()):
        axes.errorbar(
            cost.value,
            quality.value,
            xerr=reach(cost),
            yerr=reach(quality),
            label=name,
            markersize=8,
            markerfacecolor="none",  # two methods at one point stay visible
            markeredgewidth=1.2,
            capsize=2,
            linewidth=1,
            **look(number),
        )
    log_axis(axes)
    axes.set_xlabel("forward passes per sample")
    axes.set_title(title)


def lines(axes: Axes, series: Mapping[str, tuple[Sequence[float], Sequence[float]]], *, title: str) -> None:
    """Draw a line per name."""
    for number, (name, (across, up)) in enumerate(series.items()):
        axes.plot(across, up, label=name, markersize=4, linewidth=1.4, **look(number))
    axes.set_title(title)


def estimates(
    axes: Axes, series: Mapping[str, tuple[Sequence[float], Sequence[Estimate]]], *, title: str
) -> None:
    """Draw a line with intervals per name, each a little to the right of the one before."""
    for number, (name, (across, up)) in enumerate(series.items()):
        reaches = [reach(estimate) for estimate in up]
        axes.errorbar(
            [(1 + 0.04 * number) * x for x in across],
            [estimate.value for estimate in up],
            yerr=[[low for [low], _ in reaches], [high for _, [high] in reaches]],
            label=name,
            markersize=4,
            linewidth=1.4,
            elinewidth=0.8,
            capsize=2,
            **look(number),
        )
    axes.set_title(title)


def reach(estimate: Estimate) -> list[list[float]]:
    """Return how far an error bar goes down and up, or zeros without an interval."""
    if isinf(estimate.low):
        return [[0.0], [0.0]]
    # the interval of a skewed bootstrap may not contain the value
    return [[max(0.0, estimate.value - estimate.low)], [max(0.0, estimate.high - estimate.value)]]


def violins(axes: Axes, groups: Sequence[Sequence[float]], labels: Sequence[str]) -> None:
    """Draw a violin with a box inside per group. A group of equal numbers has only its box."""
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
            body.set_facecolor(COLOURS[4])
            body.set_alpha(0.6)
    axes.boxplot(
        [list(group) for group in groups],
        positions=positions,
        widths=0.16,
        showfliers=False,
        medianprops={"color": COLOURS[1], "linewidth": 1.6},
    )
    axes.set_xticks(positions, list(labels))
    axes.grid(visible=False, axis="x")
