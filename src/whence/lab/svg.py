"""Small charts as SVG text: lines, dots, bars and grids of cells, on linear or logarithmic axes.

Written here so that a picture in the documents needs no plotting package and comes out the same,
byte for byte, on every run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

COLOURS = ("#2b6cb0", "#c05621", "#2f855a", "#805ad5", "#b83280", "#4a5568", "#b7791f")
WIDTH, HEIGHT = 360, 260
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 34, 44


@dataclass(frozen=True, slots=True)
class Line:
    """A curve through points; `dashed` for what theory says, in the colour of mark number `of`."""

    x: Sequence[float]
    y: Sequence[float]
    label: str = ""
    dashed: bool = False
    of: int | None = None


@dataclass(frozen=True, slots=True)
class Dots:
    x: Sequence[float]
    y: Sequence[float]
    label: str = ""


@dataclass(frozen=True, slots=True)
class Bars:
    """A histogram: one more edge than heights."""

    edges: Sequence[float]
    heights: Sequence[float]
    label: str = ""


@dataclass(frozen=True, slots=True)
class Cells:
    """A grid of values between 0 (white) and 1 (dark), one row of `values` for each y."""

    x: Sequence[float]
    y: Sequence[float]
    values: Sequence[Sequence[float]]


Mark = Line | Dots | Bars | Cells


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    x: str
    y: str
    marks: Sequence[Mark]
    log_x: bool = False
    log_y: bool = False
    floor: float = 1e-12  # a logarithmic axis shows nothing below this


@dataclass(frozen=True, slots=True)
class Figure:
    """One or more panels in a row, with a sentence that says what to see."""

    caption: str
    panels: Sequence[Panel]


class Axis:
    """Maps values to pixels and chooses round ticks."""

    def __init__(self, values: Sequence[float], start: float, end: float, log: bool, floor: float):
        self.log, self.start, self.end, self.floor = log, start, end, floor
        shown = [value for value in values if math.isfinite(value) and (not log or value >= floor)]
        low, high = (min(shown), max(shown)) if shown else (0.1, 1.0)
        if log:
            low, high = math.log10(low), math.log10(high)
        if high - low < 1e-12:
            low, high = low - 0.5, high + 0.5
        self.low, self.high = low, high

    def place(self, value: float) -> float:
        level = math.log10(max(value, self.floor)) if self.log else value
        level = min(max(level, self.low), self.high)
        return self.start + (self.end - self.start) * (level - self.low) / (self.high - self.low)

    def ticks(self) -> list[tuple[float, str]]:
        if self.log:
            first, last = math.ceil(self.low - 1e-9), math.floor(self.high + 1e-9)
            step = max(1, math.ceil((last - first + 1) / 6))
            powers = [10.0**power for power in range(first, last + 1, step)]
            if len(powers) < 3:  # two decades or less: twos and fives as well
                levels = [
                    m * 10.0**power for power in range(first - 1, last + 1) for m in (1, 2, 5)
                ]
                within = [v for v in levels if self.low - 1e-9 <= math.log10(v) <= self.high + 1e-9]
                powers = within if len(within) > 1 else [10.0**self.low, 10.0**self.high]
            return [(power, _tick(power)) for power in powers]
        rough = (self.high - self.low) / 5
        magnitude = 10.0 ** math.floor(math.log10(rough))
        width = next(m * magnitude for m in (1, 2, 2.5, 5, 10) if m * magnitude >= rough * 0.999)
        first = math.ceil(self.low / width - 1e-9)
        last = math.floor(self.high / width + 1e-9)
        return [(index * width, _tick(index * width)) for index in range(first, last + 1)]


def _tick(value: float) -> str:
    return f"{value:.4g}"


def render(figure: Figure) -> str:
    """The figure as an SVG document."""
    width = WIDTH * len(figure.panels)
    body = "".join(
        f'<g transform="translate({index * WIDTH},0)">{_panel(panel)}</g>\n'
        for index, panel in enumerate(figure.panels)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{HEIGHT}" '
        f'viewBox="0 0 {width} {HEIGHT}" font-family="sans-serif" font-size="11">\n'
        f"<title>{escape(figure.caption)}</title>\n"
        f'<rect width="{width}" height="{HEIGHT}" fill="white"/>\n{body}</svg>\n'
    )


def _panel(panel: Panel) -> str:
    xs = [value for mark in panel.marks for value in _horizontal(mark)]
    ys = [value for mark in panel.marks for value in _vertical(mark)]
    horizontal = Axis(xs, LEFT, WIDTH - RIGHT, panel.log_x, panel.floor)
    vertical = Axis(ys, HEIGHT - BOTTOM, TOP, panel.log_y, panel.floor)
    parts = [f'<text x="{LEFT}" y="18" font-weight="bold">{escape(panel.title)}</text>\n']
    drawn = [
        _draw(mark, horizontal, vertical, _colour(mark, index))
        for index, mark in enumerate(panel.marks)
    ]
    parts += drawn
    parts += [_frame(horizontal, vertical, panel), _legend(panel.marks, horizontal, vertical)]
    return "".join(parts)


def _colour(mark: Mark, index: int) -> str:
    if isinstance(mark, Line) and mark.of is not None:
        index = mark.of
    return COLOURS[index % len(COLOURS)]


def _horizontal(mark: Mark) -> Sequence[float]:
    return mark.edges if isinstance(mark, Bars) else mark.x


def _vertical(mark: Mark) -> Sequence[float]:
    return [0.0, *mark.heights] if isinstance(mark, Bars) else mark.y


def _draw(mark: Mark, horizontal: Axis, vertical: Axis, colour: str) -> str:
    if isinstance(mark, Cells):
        return _cells(mark, horizontal, vertical)
    if isinstance(mark, Bars):
        boxes = []
        base = vertical.place(0.0)
        for left, right, height in zip(mark.edges, mark.edges[1:], mark.heights, strict=False):
            x, end, y = horizontal.place(left), horizontal.place(right), vertical.place(height)
            boxes.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{end - x:.1f}" height="{base - y:.1f}"/>'
            )
        return f'<g fill="{colour}" fill-opacity="0.75">{"".join(boxes)}</g>\n'
    points = [
        (horizontal.place(x), vertical.place(y))
        for x, y in zip(mark.x, mark.y, strict=True)
        if math.isfinite(y) and not (vertical.log and y < vertical.floor)
    ]
    if isinstance(mark, Dots):
        circles = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="1.8"/>' for x, y in points)
        return f'<g fill="{colour}" fill-opacity="0.45">{circles}</g>\n'
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dash = ' stroke-dasharray="4 3"' if mark.dashed else ""
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"{dash}/>\n'


def _cells(mark: Cells, horizontal: Axis, vertical: Axis) -> str:
    """Each cell reaches half way to its neighbours, cut at the frame."""
    columns = _borders([horizontal.place(x) for x in mark.x])
    rows = _borders([vertical.place(y) for y in mark.y])
    boxes = []
    for row, values in enumerate(mark.values):
        for column, value in enumerate(values):
            left, right = sorted(columns[column : column + 2])
            top, bottom = sorted(rows[row : row + 2])
            shade = 255 - round(200 * min(max(value, 0.0), 1.0))
            boxes.append(
                f'<rect x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" '
                f'height="{bottom - top:.1f}" fill="rgb({shade},{shade},255)"/>'
            )
    return "".join(boxes) + "\n"


def _borders(centres: Sequence[float]) -> list[float]:
    inner = [(first + second) / 2 for first, second in pairwise(centres)]
    return [centres[0], *inner, centres[-1]]


def _frame(horizontal: Axis, vertical: Axis, panel: Panel) -> str:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = [
        f'<path d="M{LEFT},{TOP} V{bottom} H{right}" fill="none" stroke="#333"/>',
        f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 8}" text-anchor="middle">'
        f"{escape(panel.x)}</text>",
        f'<text transform="translate(13,{(TOP + bottom) / 2}) rotate(-90)" '
        f'text-anchor="middle">{escape(panel.y)}</text>',
    ]
    for value, label in horizontal.ticks():
        x = horizontal.place(value)
        parts.append(
            f'<path d="M{x:.1f},{bottom} v4" stroke="#333"/>'
            f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{label}</text>'
        )
    for value, label in vertical.ticks():
        y = vertical.place(value)
        parts.append(
            f'<path d="M{LEFT},{y:.1f} h-4" stroke="#333"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
        )
    return "".join(parts) + "\n"


def _legend(marks: Sequence[Mark], horizontal: Axis, vertical: Axis) -> str:
    """In the first corner (or between two) that no curve runs through, or that with least in it."""
    named = [
        (_colour(mark, index), mark.label)
        for index, mark in enumerate(marks)
        if not isinstance(mark, Cells) and mark.label
    ]
    if not named:
        return "\n"
    height = 14 * len(named) + 4
    width = 22 + 6 * max(len(label) for _, label in named)
    left, right = LEFT + 6, WIDTH - RIGHT
    top, bottom = TOP, HEIGHT - BOTTOM - height
    covered = [point for mark in marks for point in _along(mark, horizontal, vertical)]

    def crowd(place: tuple[int, int, bool]) -> int:
        x, y, _ = place
        return sum(x <= px <= x + width and y <= py <= y + height for px, py in covered)

    places = [
        (right - width, top, True),
        (left, top, False),
        (right - width, bottom, True),
        (left, bottom, False),
        ((left + right - width) // 2, top, False),
        ((left + right - width) // 2, bottom, False),
    ]
    x, y, at_right = min(places, key=crowd)
    rows = []
    for number, (colour, label) in enumerate(named):
        line = y + 10 + 14 * number
        box, text, anchor = (right - 12, right - 16, "end") if at_right else (x, x + 14, "start")
        rows.append(
            f'<rect x="{box}" y="{line - 8}" width="10" height="10" fill="{colour}"/>'
            f'<text x="{text}" y="{line}" text-anchor="{anchor}">{escape(label)}</text>'
        )
    return "".join(rows) + "\n"


def _along(mark: Mark, horizontal: Axis, vertical: Axis) -> list[tuple[float, float]]:
    """Points that a mark covers: those of a curve every few pixels, the tops of bars."""
    if isinstance(mark, Cells):
        return []
    if isinstance(mark, Bars):
        middles = [(first + second) / 2 for first, second in pairwise(mark.edges)]
        pairs = list(zip(middles, mark.heights, strict=True))
    else:
        pairs = list(zip(mark.x, mark.y, strict=True))
    points = [(horizontal.place(x), vertical.place(y)) for x, y in pairs if math.isfinite(y)]
    if not isinstance(mark, Line):
        return points
    between = [
        (x + (end_x - x) * part / 16, y + (end_y - y) * part / 16)
        for (x, y), (end_x, end_y) in pairwise(points)
        for part in range(16)
    ]
    return [*between, *points]
