"""What recorded tables say of themselves, for the suite that records them and for the README beside them."""

from collections import Counter
from pathlib import Path
from typing import cast

from tilewright.core.trial import Failed, Timed
from tilewright.search.recorded import read_table
from tilewright.search.t4 import Json, read_document

FOLDER = Path(__file__).parent / "data"
SUFFIX = ".t4.json.gz"


def described(path: Path) -> dict[str, object]:
    """What is in a table."""
    metadata, table = read_document(path)["metadata"], read_table(path)
    timed = [o for o in table.outcomes if isinstance(o, Timed)]
    failures = Counter(f"{o.stage}:{o.reason}" for o in table.outcomes if isinstance(o, Failed))
    seconds = sorted(o.seconds for o in timed)
    best = next((n for n, o in enumerate(table.outcomes) if isinstance(o, Timed) and o.seconds == seconds[0]), None)
    return {
        "settings": len(table.space),
        "legal": metadata["settings"],
        "complete": metadata["complete"],
        "failures": dict(failures),
        "best_us": 1e6 * seconds[0] if seconds else None,
        "median_us": 1e6 * seconds[len(seconds) // 2] if seconds else None,
        "worst_us": 1e6 * seconds[-1] if seconds else None,
        "best": None if best is None else dict(table.space.schedule(best).knobs),
        "recorded_seconds": float(table.cost_seconds.sum()),
        "bytes": path.stat().st_size,
    }


def readme(folder: Path) -> str:
    """What the tables in a folder are, from what they say of themselves."""
    paths = sorted(folder.glob("*" + SUFFIX))
    heads = [read_document(path)["metadata"] for path in paths]
    conditions = {_conditions(head) for head in heads}
    lines = [f"| `{path.name.removesuffix(SUFFIX)}` | {_cells(path)} |" for path in paths]
    runs = sorted({(run["commit"], run["driver"]) for head in heads for run in head["runs"]})
    return _README.format(
        suffix=SUFFIX,
        conditions="\n".join(sorted(conditions)),
        runs="\n".join(f"- commit {commit}, driver {driver}" for commit, driver in runs),
        lines="\n".join(lines),
    )


_README = """\
# Recorded tables

Every legal setting of a sub-space of the sketch `cuda_gemm`, for one matrix product a file (`*{suffix}`: the T4
form of github.com/odgaard/TuningSchema, compressed), each built, checked against float64 and timed on the device. The
sub-space: some knobs are held to the values named in the table below (and as `subspace` in the metadata), every other
one has all its values, and legal settings that pruning would leave out are in. Failures are kept as failures
(`failure`: stage, reason, detail), times with their samples (`runtimes`, each the mean of `launches_per_runtime`
launches on rotating buffers, caches cold). `measurements` also has the sketch's derived columns (`quantities` in the
metadata says what they are) and, as `evidence.*`, what the compiler and the device's sensors said.

`tilewright.search.recorded.read_table(path)` gives a space, its outcomes, what each cost, and a measurer that
strategies search on without a device; `python -m benchmarks recorded-search` does. The products are linear layers in
bfloat16, projections of language models, named by tokens x outputs x inputs.

Made, and completed where something is missing, by `python -m benchmarks record` (`--rows` for some of them), on

{conditions}

{runs}

| table | sub-space | settings | failed | best, us | median, us | slowest, us |
|---|---|---|---|---|---|---|
{lines}
"""


def _cells(path: Path) -> str:
    about = described(path)
    failures = cast(dict[str, int], about["failures"])
    failed = ", ".join(f"{count} {name}" for name, count in failures.items()) or "0"
    times = " | ".join("" if about[n] is None else f"{about[n]:.1f}" for n in ("best_us", "median_us", "worst_us"))
    whole = "" if about["complete"] else f" of {about['legal']}"
    held = "; ".join(f"{k} {', '.join(map(str, v))}" for k, v in read_document(path)["metadata"]["subspace"].items())
    return f"{held} | {about['settings']}{whole} | {failed} | {times}"


def _conditions(head: Json) -> str:
    toolchain = ", ".join(f"{name} {version}" for name, version in head["toolchain"].items() if name != "flags")
    return f"- {head['device']['name']}; {head['sketch']}@{head['version']}; {toolchain}; profile {head['profile']}"
