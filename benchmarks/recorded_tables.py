"""What recorded tables say of themselves, for the suite that records them and for the README beside them."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

from tilewright.core.trial import Failed, Timed
from tilewright.search.recorded import read_table
from tilewright.search.t4 import Json, read_document

FOLDER = Path(__file__).parent / "data"
SUFFIX = ".t4.json.gz"
KINDS = ("convolution", "permute", "product", "reduction", "softmax")
"""The kinds of workloads that have a folder each (``recorded_workloads``)."""
SWEEP = "sweep"
"""The folder of tables that are not searched: few settings, at many shapes (``recorded_sweeps``)."""


def searched_tables(folder: Path) -> list[Path]:
    """Return the tables of one device that searches are replayed on: those in a folder, and in the folders of kinds in
    it. Other folders in it are of other devices, or of sweeps."""
    return sorted(path for place in (folder, *(folder / kind for kind in KINDS)) for path in place.glob("*" + SUFFIX))


def described(path: Path) -> dict[str, object]:
    """Return what is in a table."""
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
    """Return what the tables in a folder are, from what they say of themselves."""
    paths, sweeps = searched_tables(folder), sorted((folder / SWEEP).glob("*" + SUFFIX))
    heads = [read_document(path)["metadata"] for path in (*paths, *sweeps)]
    conditions = {_conditions(head) for head in heads}
    lines = [f"| `{path.name.removesuffix(SUFFIX)}` | {_cells(path)} |" for path in paths]
    kinds = [f"`{kind}`" for kind in KINDS if any(path.parent.name == kind for path in paths)]
    others = [f"`{place.parent.name}`" for place in sorted(folder.glob("*/README.md"))]
    parts = [
        _OF_LANGUAGE_MODELS * any(path.parent == folder for path in paths),
        _OF_KINDS.format(kinds=_listed(kinds)) * bool(kinds),
        _OF_SWEEPS * bool(sweeps),
        _OF_OTHERS.format(others=_listed(others)) * bool(others),
    ]
    devices = sorted({head["device"]["name"] for head in heads})
    runs = sorted({(run["commit"], run["driver"]) for head in heads for run in head["runs"]})
    return _README.format(
        suffix=SUFFIX,
        parts="".join(parts),
        notes="".join(_NOTES.get(name, "") for name in devices),
        conditions="\n".join(sorted(conditions)),
        runs="\n".join(f"- commit {commit}, driver {driver}" for commit, driver in runs),
        lines="\n".join(lines),
        sweeps=_SWEEPS.format(lines="\n".join(_sweep_lines(sweeps))) if sweeps else "",
    )


_README = """\
# Recorded tables

Settings of a sketch for one workload a file (`*{suffix}`: the T4 form of github.com/odgaard/TuningSchema, compressed),
each built, checked and timed on the device. A table has every legal setting of a sub-space: some knobs are held to the
values named in the table below (and as `subspace` in the metadata), every other one has all its values, and legal
settings that pruning would leave out are in. Where no knob is held, it is the whole space of the sketch. A table that
says "of" is not complete: it has the 16 settings that the prior likes best and a random part of the others, and
`python -m benchmarks record` goes on with it.

{parts}
Checked was every setting, on the device: outputs against the float64 reference within the tolerance of the workload, no
element unwritten, nothing written outside of outputs, before it was timed and again afterwards. Equal binaries of one
workload were checked and timed once (`evidence.equal_binary`). Failures are kept as failures (`failure`: stage, reason,
detail), times with their samples (`runtimes`, each the mean of `launches_per_runtime` launches on rotating buffers,
caches cold). In folders of kinds a setting has five samples where it is within about 10 % of the fastest so far, three
where it is within 30 %, and one beyond (`evidence.stopped_early`). `measurements` also has the sketch's derived columns
(`quantities` in the metadata says what they are) and, as `evidence.*`, what the compiler and the sensors said.
{notes}
`tilewright.search.recorded.read_table(path)` gives a space, its outcomes, what each cost, and a measurer that
strategies search on without a device; `python -m benchmarks recorded-search` does, and `prior-search` on workloads.

Made, and completed where something is missing, by `python -m benchmarks record` (`--rows` for some of them), on

{conditions}

{runs}

| table | sub-space | settings | failed | best, us | median, us | slowest, us |
|---|---|---|---|---|---|---|
{lines}
{sweeps}"""

_SWEEPS = """
## Sweeps

A table `sweep-ROWSxOUTPUTSxINPUTS-SKETCH` has few of the legal settings, up to 64 rows at most 150 of all sketches
together. They are of a pool that all tables of a sketch and layer share, so that the same settings are timed at many
numbers of rows: the settings that the prior ranks first at some number of rows, in turns. A table has the first ones
that are legal at its number of rows (`selection` in the metadata). A setting has nine samples
or more where it is within about 10 % of the fastest so far, three where it is within 30 %, and one beyond. Searches
are not replayed on these tables.

| tables | at rows | settings | missing | failed | best, us |
|---|---|---|---|---|---|
{lines}
"""

_OF_LANGUAGE_MODELS = """\
- In this folder: products of language models, linear layers in bfloat16 named by tokens x outputs x inputs.
"""
_OF_KINDS = """\
- In {kinds}: workloads of a kind each
  (`benchmarks/recorded_workloads.py`) by all sketches that take them. Together, the files of a workload are what a
  search chooses from.
"""
_OF_SWEEPS = """\
- In `sweep`: linear layers of Llama 3 8B at many numbers of rows (`benchmarks/recorded_sweeps.py`), which shape
  families are made of. See below.
"""
_OF_OTHERS = """\
- In {others}: tables of another device, with a README of their own.
"""
_NOTES = {
    "NVIDIA H200": """\
499 settings of `convolution-3x3-56x56x64` were timed again by a later run: the median ratio is 1.002,
nine tenths lie within -1.5 % and +1.9 %, and of settings within 20 % of the fastest within 1.4 %.
The five failures of `convolution-3x3-56x56x64-cuda_conv` were a defect of the kernels of that commit, which is mended.
"""
}
"""Name of a device -> what is known of its tables beyond what they say of themselves."""


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def _sweep_lines(paths: Sequence[Path]) -> Iterator[str]:
    """Return a line for all tables of a sketch and layer."""
    groups: dict[tuple[int, int, str], list[tuple[int, Path]]] = defaultdict(list)
    for path in paths:
        head = read_document(path)["metadata"]
        about = head["parameters"]
        groups[about["outputs"], about["inputs"], head["sketch"]].append((about["rows"], path))
    for (outputs, inputs, sketch), members in sorted(groups.items()):
        found = [described(path) for _, path in sorted(members)]
        rows = ", ".join(str(rows) for rows, _ in sorted(members))
        settings, legal = (sum(int(str(about[n])) for about in found) for n in ("settings", "legal"))
        times = [float(str(about["best_us"])) for about in found if about["best_us"] is not None]
        cells = (
            rows,
            settings,
            legal - settings,
            _failed(found),
            f"{min(times):.1f} to {max(times):.1f}" if times else "",
        )
        yield f"| `sweep-*x{outputs}x{inputs}-{sketch}` | {' | '.join(map(str, cells))} |"


def _failed(found: Sequence[Mapping[str, object]]) -> str:
    """Return how many settings of tables failed, and of what."""
    failures: Counter[str] = Counter()
    for about in found:
        failures.update(cast(dict[str, int], about["failures"]))
    return ", ".join(f"{count} {name}" for name, count in failures.items()) or "0"


def _cells(path: Path) -> str:
    about = described(path)
    times = " | ".join("" if about[n] is None else f"{about[n]:.1f}" for n in ("best_us", "median_us", "worst_us"))
    whole = "" if about["complete"] else f" of {about['legal']}"
    held = "; ".join(f"{k} {', '.join(map(str, v))}" for k, v in read_document(path)["metadata"]["subspace"].items())
    return f"{held or 'whole'} | {about['settings']}{whole} | {_failed([about])} | {times}"


def _conditions(head: Json) -> str:
    toolchain = ", ".join(f"{name} {version}" for name, version in head["toolchain"].items() if name != "flags")
    return f"- {head['device']['name']}; {head['sketch']}@{head['version']}; {toolchain}; profile {head['profile']}"
