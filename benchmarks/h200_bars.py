"""The bars of a suite on an H200: how fast its rows must be against the fastest peer, and how soon they are tuned."""

from collections.abc import Mapping

from benchmarks.gpu_table import against_summary, geometric_mean, reaches_against_bar

MOST_TRIALS = 100
"""How many trials tune one row at most."""
MOST_ROW_SECONDS = 180.0
"""A row is tuned in less time than this."""
Bars = Mapping[str, tuple[str, float, float]]
"""Name -> first letters of rows, least geometric mean, least ratio of a row."""
PREFIXES = ("", "sustained_")


def bars_summary(table: list[dict[str, object]], bars: Bars) -> dict[str, object]:
    """By group: geometric mean and least ratio, short and sustained; failed rows count as ratio 0."""
    summary: dict[str, object] = {"rows": len(table)}
    below: list[str] = []
    for prefix in PREFIXES:
        for name, (letters, _, least) in bars.items():
            own = {str(r["row"]): r.get(f"{prefix}ratio", 0.0) for r in table if str(r["row"])[0] in letters}
            ratios = {row: float(str(v)) for row, v in own.items() if v is not None}
            summary[f"{prefix}{name}_geomean"] = geometric_mean(list(ratios.values()))
            summary[f"{prefix}{name}_min"] = min(ratios.values(), default=None)
            below += [f"{prefix}{row}" for row, ratio in ratios.items() if ratio < least]
    seconds = [float(str(r["tuning_s"])) for r in table if r.get("tuning_s") is not None]
    return {
        **summary,
        **against_summary(table),
        "below_bar": below,
        "longest_tuning_s": max(seconds, default=None),
        "most_trials": max((int(str(r["trials"])) for r in table if r.get("trials") is not None), default=None),
    }


def reaches_bars(summary: Mapping[str, object], bars: Bars) -> bool:
    """Return whether a ``bars_summary`` reaches them, and an earlier result, if there is one, is no faster on the
    whole."""

    def reaches(name: str, least: float) -> bool:
        return summary[name] is None or float(str(summary[name])) >= least

    means = all(reaches(f"{prefix}{name}_geomean", bar) for prefix in PREFIXES for name, (_, bar, _) in bars.items())
    quick = summary["longest_tuning_s"] is None or float(str(summary["longest_tuning_s"])) < MOST_ROW_SECONDS
    quick &= summary["most_trials"] is None or int(str(summary["most_trials"])) <= MOST_TRIALS
    return means and quick and not summary["below_bar"] and reaches_against_bar(summary)
