"""The methodology's score of strategies on recorded tables (``methodology``), search time charged, no device.

One row for each table and strategy, and one for each strategy over all of them. Options:

    --rows GLOB            tables whose name matches, of ``benchmarks/hub``
    --set folder=FOLDER    another folder of tables
    --set strategies=A,B   of ``search.strategies``, or of the file of curves (default: model)
    --set runs=N           of each strategy on each table (25)
    --set history=N        warm: strategies are given N random records of the same kernel on every other device, or
                           ``full`` for whole tables; default: none
    --set curves=FILE      runs are kept there and not played again; peers are read from there
    --set peers=FILE       curves of peers to compare with (benchmarks/results/search-peers.json)
    --set batch=N          candidates asked for at once (1)

Bars: see ``_BARS``. The nine are the tables of the hub whose budget is 100 evaluations and more, the small ones those
under 60. Intervals are by bootstrap over tables and runs.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import numpy as np

from tilewright.benchmarks.methodology import Run, Scale
from tilewright.benchmarks.search_curves import Curves, play
from tilewright.benchmarks.suite import Options, Result
from tilewright.core.streams import stream
from tilewright.cost_model.dataset import Experience
from tilewright.runtime.devices import device_infos
from tilewright.search.recorded import Recorded, read_table
from tilewright.search.strategies import STRATEGIES
from tilewright.search.strategy import SearchProblem
from tilewright.te.operators import OPERATORS

FOLDER = Path(__file__).parent / "hub"
PEERS = Path(__file__).parent / "results" / "search-peers.json"
RUNS = 25
SUFFIXES = (".csv.gz", ".t4.json.gz", ".csv")
SMALL, LARGE = 60, 100
_BARS = {"cold": {"nine": 0.86, "all": 0.65, "small": 0.1, "to_1_percent": 75}, "full": {"all": 0.96, "worst": 0.88}}
_BARS |= {"records": {"all": 0.94, "worst": 0.88}}
_DRAWS = 100


def tables(folder: Path, rows: str) -> dict[str, Path]:
    """Name -> file of the tables in a folder whose names match."""
    found = {}
    for path in sorted(folder.iterdir()):
        suffix = next((s for s in SUFFIXES if path.name.endswith(s)), None)
        if suffix and fnmatch(name := path.name.removesuffix(suffix), rows):
            found[name] = path
    return found


def run(options: Options) -> Result:
    """Play what is missing, then score."""
    extra = options.extra
    folder, runs = Path(extra.get("folder", FOLDER)), int(extra.get("runs", RUNS))
    wanted, history = extra.get("strategies", "model").split(","), extra.get("history", "none")
    curves = Curves(Path(extra["curves"]) if "curves" in extra else None)
    peers = Curves(Path(extra.get("peers", PEERS)))
    scales = {name: Scale(_table(path)) for name, path in tables(folder, options.rows).items()}
    found: dict[str, dict[str, list[Run]]] = {}
    for strategy in wanted:
        label = strategy if history == "none" else f"{strategy} with {history}"
        for space, scale in scales.items():
            have = curves.get(label, space)
            for number in range(options.seed, options.seed + runs):
                if number not in have:
                    earlier = _history(folder, space, history, number)
                    searcher = STRATEGIES[strategy](SearchProblem(scale.table.pool, number, earlier))
                    have[number] = play(scale.table, scale, searcher, int(extra.get("batch", 1)))
                    curves.put(label, space, number, have[number], "this checkout")
            found.setdefault(label, {})[space] = [have[n].run for n in range(options.seed, options.seed + runs)]
    own = list(found)
    for peer in peers.names:
        for space in scales:
            if recorded := peers.get(peer, space):
                found.setdefault(peer, {})[space] = [curve.run for curve in recorded.values()]
    rows = [_row(label, space, scales[space], r) for label, spaces in found.items() for space, r in spaces.items()]
    overall = {label: _overall([r for r in rows if r["strategy"] == label]) for label in found}
    ahead = {label: _ahead(found[label], found, scales, [p for p in found if p not in own]) for label in own}
    kind = {"none": "cold", "full": "full"}.get(history, "records")
    passed = all(_meets(overall[label], _BARS[kind], ahead[label]) for label in own)
    summary = {label: {**overall[label], "ahead_of": ahead.get(label, {})} for label in found}
    return Result(tuple(rows), summary, passed, {"runs": runs, "history": history, "batch": extra.get("batch", "1")})


@cache
def _table(path: Path) -> Recorded:
    return read_table(path)


def _row(label: str, space: str, scale: Scale, runs: Sequence[Run]) -> dict[str, object]:
    by_evaluations = Scale(scale.table, by_evaluations=True)
    budget = scale.evaluations[1]
    within = [scale.evaluations_within(r, 0.01) for r in runs]
    to_best = float(np.median([n if n <= budget else np.inf for n in within]))
    low, high = _interval(scale, runs)
    return {
        "row": f"{label} on {space}",
        "strategy": label,
        "space": space,
        "runs": len(runs),
        "budget": budget,
        "score": scale.score(runs),
        "low": low,
        "high": high,
        "score_by_evaluations": by_evaluations.score(runs),
        "to_1_percent": None if np.isinf(to_best) else to_best,
        "reached": float(np.mean([n <= budget for n in within])),
    }


def _overall(rows: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Means over tables; None where there are none of a kind."""

    def mean(kept: Sequence[Mapping[str, object]], key: str = "score") -> float | None:
        return float(np.mean([float(str(r[key])) for r in kept])) if kept else None

    large = [r for r in rows if int(str(r["budget"])) >= LARGE]
    reached = [np.inf if r["to_1_percent"] is None else float(str(r["to_1_percent"])) for r in rows]
    median = float(np.median(reached))
    return {
        "tables": len(rows),
        "all": mean(rows),
        "nine": mean(large),
        "small": mean([r for r in rows if int(str(r["budget"])) < SMALL]),
        "worst": min(float(str(r["score"])) for r in rows),
        "all_by_evaluations": mean(rows, "score_by_evaluations"),
        "nine_by_evaluations": mean(large, "score_by_evaluations"),
        "to_1_percent": None if np.isinf(median) else median,
    }


def _interval(scale: Scale, runs: Sequence[Run]) -> tuple[float, float]:
    """Return the 90 % interval of a score, by bootstrap over runs."""
    rng = stream(0, "interval")
    drawn = [rng.integers(len(runs), size=len(runs)) for _ in range(_DRAWS)]
    scores = [scale.score([runs[i] for i in d], bags=False) for d in drawn]
    return float(np.quantile(scores, 0.05)), float(np.quantile(scores, 0.95))


def _ahead(
    own: Mapping[str, Sequence[Run]],
    found: Mapping[str, Mapping[str, Sequence[Run]]],
    scales: Mapping[str, Scale],
    peers: Sequence[str],
) -> dict[str, list[float]]:
    """Peer -> [mean, low, high] of how far ahead of it a strategy is on the large tables that both have."""
    result = {}
    for peer in peers:
        shared = [s for s in own if s in found[peer] and scales[s].evaluations[1] >= LARGE]
        if not shared:
            continue
        rng = stream(0, "ahead", peer)
        gains = np.empty((_DRAWS, len(shared)))
        for place, space in enumerate(shared):
            for draw in range(_DRAWS):
                ours, theirs = (
                    scales[space].score([runs[i] for i in rng.integers(len(runs), size=len(runs))], bags=False)
                    for runs in (own[space], found[peer][space])
                )
                gains[draw, place] = ours - theirs
        picked = rng.integers(len(shared), size=(_DRAWS, len(shared)))
        means = np.take_along_axis(gains, picked, axis=1).mean(axis=1)
        result[peer] = [float(gains.mean()), float(np.quantile(means, 0.05)), float(np.quantile(means, 0.95))]
    return result


def _meets(overall: Mapping[str, object], bars: Mapping[str, float], ahead: Mapping[str, Sequence[float]]) -> bool:
    values = {key: overall[key] for key in bars}
    ok = all(
        isinstance(v, float) and (v <= bars[key] if key == "to_1_percent" else v >= bars[key])
        for key, v in values.items()
    )
    return ok and all(low > 0 for _, low, _ in ahead.values())


def _history(folder: Path, space: str, history: str, run: int) -> tuple[Experience, ...]:
    """Return the records of the same kernel on every other device. Raises ValueError where there are none."""
    if history == "none":
        return ()
    return _experiences(folder, space, None if history == "full" else int(history), 0 if history == "full" else run)


@cache
def _experiences(folder: Path, space: str, records: int | None, run: int) -> tuple[Experience, ...]:
    kernel = space.partition("__")[0]
    workload = OPERATORS["matmul"].workload({"m": 1, "n": 1, "k": 1})  # tables of other tuners do not say theirs
    found = []
    for name, path in tables(folder, kernel + "__*").items():
        if name != space:
            table = _table(path)
            rows = np.arange(len(table.space))
            if records is not None:
                rows = stream(run, "history", name).permutation(rows)[:records]
            results = tuple((table.space.schedule(int(r)), table.outcomes[int(r)]) for r in rows)
            found.append(Experience(workload, device_infos()[0], results))
    if not found:
        raise ValueError(
            f"no history for {space} in {folder}: it has no table named {kernel}__DEVICE of another device"
        )
    return tuple(found)
