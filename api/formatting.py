"""Formats numbers for people: with a unit, with three or four significant digits, and with one unit in a column."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from markupsafe import Markup, escape

from ..core.budget import StopReason
from ..core.policy import SpacePolicy
from ..service.views import JobView, TaskView, TrialView

DASH = Markup('<span class="none" title="not known">–</span>')
_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_BYTE_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))


def figure(number: str, unit: str = "") -> Markup:
    """Return a number and its unit as separate elements, for the style sheet."""
    if not unit:
        return Markup('<span class="fig"><span class="num">{}</span></span>').format(number)
    return Markup('<span class="fig"><span class="num">{}</span><span class="unit"> {}</span></span>').format(
        number, unit
    )


def digits(value: float, significant: int = 4) -> str:
    """Write ``value`` in plain notation with about ``significant`` digits: 1234 -> 1,234; 0.01234 -> 0.01234."""
    if value == 0:
        return "0"
    whole_digits = len(str(int(abs(value)))) if abs(value) >= 1 else 1
    decimals = max(0, significant - whole_digits)
    if abs(value) < 0.1:
        return f"{value:.{significant}g}"
    return f"{value:,.{decimals}f}"


def time_unit(seconds: float) -> tuple[float, str]:
    """Return (seconds in one unit, name) of the largest unit in which ``seconds`` is at least 1."""
    return next(((size, name) for size, name in _TIME_UNITS if seconds >= size), _TIME_UNITS[-1])


def seconds_text(seconds: float) -> str:
    """Write the duration of a kernel as plain text: 1.234 ms."""
    size, unit = time_unit(seconds)
    return f"{digits(seconds / size)} {unit}"


def seconds_figure(seconds: float | None, like: float | None = None) -> Markup:
    """Write the duration of a kernel in the unit that fits ``like``, which is the duration itself by default."""
    if seconds is None:
        return DASH
    size, unit = time_unit(like if like is not None else seconds)
    return figure(digits(seconds / size), unit)


def rate_figure(amount: float | None, seconds: float | None, unit: str) -> Markup:
    """Write ``amount`` per second in billions: GFLOP/s, GB/s."""
    if not amount or not seconds:
        return DASH
    return figure(digits(amount / seconds / 1e9), unit)


def ratio_figure(over: float | None, under: float | None) -> Markup:
    """Write ``over`` divided by ``under``."""
    if not over or not under:
        return DASH
    return figure(digits(over / under, 3), "×")


def percent_figure(part: float | None, whole: float | None = 1.0) -> Markup:
    """Write ``part`` of ``whole`` in per cent."""
    if part is None or not whole:
        return DASH
    return figure(digits(100 * part / whole, 3), "%")


def rate_of(rate: float | None, unit: str) -> Markup:
    """Write a rate that is known as such."""
    return DASH if rate is None else figure(digits(rate, 3), unit)


def reading_name(name: str) -> str:
    """Write the name of a reading without its unit: ``read_bytes_per_second`` -> read."""
    for ending in _READINGS:
        if name.endswith(ending) and name != ending.strip("_"):
            name = name.removesuffix(ending)
    return breakable(name.replace("_", " "))


def reading_figure(value: float, name: str) -> Markup:
    """Write a reading of a device in the unit that its name ends with."""
    for ending, (size, unit) in _READINGS.items():
        if name.endswith(ending):
            if unit in _OWN_FORMS:
                return _OWN_FORMS[unit](value)
            return figure(digits(value / size), unit)
    if name.startswith("flops") or "_flops" in name:
        return figure(digits(value / 1e9), "GFLOP/s")
    return figure(f"{value:,.6g}")


_READINGS = {
    "_bytes_per_second": (1e9, "GB/s"),
    "_flops_per_second": (1e9, "GFLOP/s"),
    "_bytes": (1.0, "B"),
    "_seconds": (1.0, "s"),
    "_mhz": (1.0, "MHz"),
    "_khz": (1e3, "MHz"),
    "_hertz": (1e9, "GHz"),
    "_watts": (1.0, "W"),
    "_celsius": (1.0, "°C"),
}
"""How the name of a reading ends -> its unit, and what one of that is in the unit of the value."""


def bytes_figure(count: float | None) -> Markup:
    """Write a size in binary units."""
    if count is None:
        return DASH
    size, unit = next(((s, u) for s, u in _BYTE_UNITS if count >= s), _BYTE_UNITS[-1])
    return figure(digits(count / size, 3), unit)


_OWN_FORMS: dict[str, Callable[[float], Markup]] = {"B": bytes_figure, "s": seconds_figure}
"""Units whose prefix depends on the value."""


def count_figure(count: int | None, unit: str = "") -> Markup:
    """Write a whole number, grouped by thousands."""
    return DASH if count is None else figure(f"{count:,}", unit)


def duration_figure(seconds: float | None) -> Markup:
    """Write a wall-clock duration: 4.2 s, 3 min 05 s, 2 h 10 min."""
    if seconds is None:
        return DASH
    if seconds < 60:
        return figure(f"{seconds:.1f}", "s")
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return figure(f"{minutes}", "min") + " " + figure(f"{rest:02d}", "s")
    return figure(f"{minutes // 60}", "h") + " " + figure(f"{minutes % 60:02d}", "min")


def moment(stamp: str | None) -> Markup:
    """Write an RFC 3339 time as a ``<time>`` element, to the second, in UTC."""
    if not stamp:
        return DASH
    shown = datetime.fromisoformat(stamp).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
    return Markup('<time datetime="{}">{}<span class="unit"> UTC</span></time>').format(stamp, shown)


def elapsed_seconds(job: JobView) -> float | None:
    """Return how long a job has been running, or ran."""
    if job.started_at is None:
        return None
    end = datetime.fromisoformat(job.finished_at) if job.finished_at else datetime.now(UTC)
    return max(0.0, (end - datetime.fromisoformat(job.started_at)).total_seconds())


def policy_text(job: JobView) -> str:
    """Say how much of the spaces a job searches."""
    return str(SpacePolicy(job.prune, job.prior))


def parameters_text(parameters: Mapping[str, object] | None) -> str:
    """Write an operator's parameters in a line: ``m=512 n=512``."""
    return " ".join(f"{name}={_short(value)}" for name, value in (parameters or {}).items())


def _short(value: object) -> str:
    return "×".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def task_title(task: TaskView) -> str:
    """Return what a task is called: its operator, or the beginning of its workload's key."""
    return task.operator or f"workload {task.workload_key[:12]}"


def knobs_text(trial: TrialView) -> str:
    """Write a schedule's knobs in a line."""
    return " ".join(f"{name}={value}" for name, value in trial.schedule.knobs)


def breakable(text: str) -> Markup:
    """Allow a line break after each ``=`` and ``_`` of a text."""
    return Markup(str(escape(text)).replace("_", "_<wbr>").replace("=", "=<wbr>"))


STOPPED = {
    StopReason.TRIALS: "all that were asked for",
    StopReason.SECONDS: "ended by the time limit",
    StopReason.STALL: "ended without a new best for long",
    StopReason.EXHAUSTED: "ended with every legal schedule tried",
    StopReason.NOT_WORTHWHILE: "ended where more would not pay",
    StopReason.KEPT: "ended as the winner holds",
    StopReason.CANCELLED: "then cancelled",
    StopReason.ERROR: "ended by an error",
}
"""What a page says of the trials of a task that is no longer tuned."""
FILTERS = {
    "reading": reading_figure,
    "reading_name": reading_name,
    "rate_of": rate_of,
    "seconds": seconds_figure,
    "percent": percent_figure,
    "bytes": bytes_figure,
    "count": count_figure,
    "duration": duration_figure,
    "moment": moment,
    "parameters": parameters_text,
    "knobs": knobs_text,
    "breakable": breakable,
}
FUNCTIONS = {
    "pairs": lambda names: [(name, name.replace("_", " ")) for name in names],
    "rate": rate_figure,
    "ratio": ratio_figure,
    "fraction": percent_figure,
    "task_title": task_title,
    "elapsed": elapsed_seconds,
    "policy": policy_text,
    "seconds_text": seconds_text,
    "dash": DASH,
    "STOPPED": STOPPED,
}
