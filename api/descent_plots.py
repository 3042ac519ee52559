"""The two plots of the page of a kernel's layers as geometry, which the template writes as SVG: they need no script."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..service.relatives import Neighbour
from ..service.views import Explanation

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 62, 16, 14, 40
_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark of an axis."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class PlottedRecord:
    """A record in a plot. ``kind`` is ``own``, ``task`` or ``device``."""

    x: float
    y: float
    kind: str
    record_id: int
    label: str


@dataclass(frozen=True, slots=True)
class RooflinePlot:
    """``roof`` is the path of the limit; empty where no peak was measured."""

    roof: str
    dots: tuple[PlottedRecord, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]


@dataclass(frozen=True, slots=True)
class _PlotAxis:
    """A logarithmic axis from ``low`` to ``high`` (powers of ten) over ``start`` to ``end`` in the drawing."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def around(cls, values: Sequence[float], start: float, end: float) -> "_PlotAxis":
        logs = [math.log10(v) for v in values]
        return cls(math.floor(min(logs) - 0.15), math.ceil(max(logs) + 0.15), start, end)

    def at(self, value: float) -> float:
        part = (math.log10(value) - self.low) / (self.high - self.low)
        return round(self.start + part * (self.end - self.start), 1)

    def ticks(self) -> tuple[Tick, ...]:
        every = max(1, round((self.high - self.low) / 6))
        powers = range(int(self.low), int(self.high) + 1, every)
        return tuple(Tick(self.at(10.0**p), _short(10.0**p)) for p in powers)


def roofline_plot(explanation: Explanation, record_id: int, neighbours: Sequence[Neighbour]) -> RooflinePlot | None:
    """Return operations per second over operations per byte of the record and its neighbours, with the limit; None
    for an expression without arithmetic or without a time."""
    if not explanation.flops or not explanation.seconds or not explanation.minimum_bytes:
        return None
    own = (explanation.flops_per_byte, explanation.flops / explanation.seconds, "own", record_id)
    points = [own, *(_point(n) for n in neighbours if n.flops and n.minimum_bytes and n.record_id != record_id)]
    intensities, rates = [p[0] for p in points], [p[1] for p in points]
    peak, memory = explanation.peak_flops_per_second, explanation.peak_bytes_per_second
    if peak and memory:
        intensities.append(peak / memory)
    x = _PlotAxis.around(intensities, LEFT, WIDTH - RIGHT)
    limits = [peak] if peak else []
    limits += [memory * i for i in (explanation.flops_per_byte,)] if memory else []
    y = _PlotAxis.around([*rates, *(min(limit, peak or limit) for limit in limits)], HEIGHT - BOTTOM, TOP)
    dots = [
        PlottedRecord(x.at(i), y.at(rate), kind, n, f"{_short(rate)}FLOP/s") for i, rate, kind, n in reversed(points)
    ]
    return RooflinePlot(_roof(x, y, peak, memory), tuple(dots), x.ticks(), y.ticks())


def _point(n: Neighbour) -> tuple[float, float, str, int]:
    return n.flops / n.minimum_bytes, n.flops / n.seconds, "task" if n.same_task else "device", n.record_id


def _roof(x: _PlotAxis, y: _PlotAxis, peak: float | None, memory: float | None) -> str:
    low, high = 10.0**x.low, 10.0**x.high
    floor = 10.0**y.low
    points: list[tuple[float, float]] = []
    if memory:
        first = max(low, floor / memory)
        last = min(high, peak / memory) if peak else high
        points += [(first, first * memory), (last, last * memory)]
    if peak:
        points += [(min(high, max(low, peak / memory)) if memory else low, peak), (high, peak)]
    top = 10.0**y.high
    return " ".join(f"{x.at(a)},{y.at(min(b, top))}" for a, b in points)


def _short(value: float) -> str:
    """Write a power of ten or a rate with a prefix: 1 T, 250 G, 0.1."""
    size, unit = next(((s, u) for s, u in _UNITS if value >= s), (1.0, ""))
    return f"{value / size:.3g} {unit}".strip() if unit else f"{value:.3g}"


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One run of samples as dots on a line: ``dots`` are (x, y). ``quartiles`` are the ends of the middle half."""

    name: str
    dots: tuple[tuple[float, float], ...]
    median: float
    quartiles: tuple[float, float]
    base: float


@dataclass(frozen=True, slots=True)
class SamplePlot:
    """``height`` grows with the rows. ``ticks`` are seconds."""

    rows: tuple[SampleRow, ...]
    ticks: tuple[tuple[float, float], ...]
    height: float


ROW_HEIGHT = 74
_BINS = 96
_DOT = 5.0


def sample_plot(runs: Sequence[tuple[str, Sequence[float]]]) -> SamplePlot:
    """Return the samples of each run, stacked where they are alike. Times are linear, and all rows share the axis."""
    every = [s for _, samples in runs for s in samples]
    low, high = min(every), max(every)
    room = (high - low) * 0.04 or low * 0.01
    low, high = low - room, high + room

    def at(seconds: float) -> float:
        return round(LEFT + (seconds - low) / (high - low) * (WIDTH - RIGHT - LEFT), 1)

    rows = []
    for n, (name, samples) in enumerate(runs):
        base = (n + 1) * ROW_HEIGHT - 12.0
        stacked: dict[int, int] = {}
        dots = []
        for s in samples:
            place = int((s - low) / (high - low) * _BINS)
            level = stacked[place] = stacked.get(place, 0) + 1
            dots.append((at(s), base - _DOT * min(level, 10)))
        ordered = sorted(samples)
        quartiles = (at(ordered[len(ordered) // 4]), at(ordered[3 * len(ordered) // 4]))
        middle = ordered[len(ordered) // 2] if len(ordered) % 2 else sum(ordered[len(ordered) // 2 - 1 :][:2]) / 2
        rows.append(SampleRow(name, tuple(dots), at(middle), quartiles, base))
    ticks = tuple(
        (at(low + room + (high - low - 2 * room) * part / 4), low + room + (high - low - 2 * room) * part / 4)
        for part in range(5)
    )
    return SamplePlot(tuple(rows), ticks, len(runs) * ROW_HEIGHT + 26.0)
