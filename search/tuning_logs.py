"""Reads logs of other autotuners as rows: what Triton, Inductor and MetaSchedule chose from, and how long it took.

    triton        ``*.autotune.json``, which Triton keeps with ``cache_results``: every configuration with its times in
                  milliseconds, infinity where it failed
    triton-log    what ``TRITON_PRINT_AUTOTUNING=1`` prints: the best configuration of each call, without a time
    inductor      ``*.best_config`` of Inductor's cache: one configuration, without the time of a launch
    inductor-log  Inductor's tables ``AUTOTUNE mm(512x256, 256x512)``: a line for each choice, with milliseconds
    metaschedule  ``database_tuning_record.json`` of TVM; a line is ``[workload, [trace, seconds, target, arguments]]``

Tables of Kernel Tuner and of the T4 form have readers of their own (``search.recorded``).
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.errors import InvalidParameter
from ..core.schedule import KnobValue
from ..core.trial import Failed, Outcome, Reason, Timed, TrialStage

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class LogRow:
    """One choice of another tuner.

    settings: What it chose, by the names of its log.
    outcome: How that ended; None where the log has no time.
    shapes: Those of the arguments, where the log has them; empty otherwise.
    extents: The extents of the loops that were tiled, where the log has them; empty otherwise.
    refused: Why the row says nothing that could be used; empty where it does.
    """

    settings: Mapping[str, KnobValue] = field(default_factory=dict)
    outcome: Outcome | None = None
    shapes: Shapes = ()
    extents: tuple[int, ...] = ()
    refused: str = ""


def read_log(text: str, form: str) -> list[LogRow]:
    """Return the rows of a log. ``form`` is a name in LOG_FORMS. Raises InvalidParameter where the text is of another
    form."""
    parse = LOG_FORMS.get(form)
    if parse is None:
        raise InvalidParameter(f"{form[:80]!r} is no form of a log; allowed: {', '.join(LOG_FORMS)}", field="format")
    try:
        rows = list(parse(text))
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise InvalidParameter(f"this is no log of the form {form}: {why}", field="file") from error
    if not rows:
        raise InvalidParameter(f"this log of the form {form} has no rows", field="file")
    return rows


def _outcome(seconds: Sequence[float]) -> Outcome:
    if seconds and all(math.isfinite(s) and 0 < s < _NEVER for s in seconds):
        return Timed(tuple(seconds))
    return Failed(TrialStage.TIME, Reason.LAUNCH_ERROR, "the log has no finite time")


_NEVER = 1e9
"""MetaSchedule writes 1e10 seconds for a failure."""


def _triton(text: str) -> Iterator[LogRow]:
    for configuration, times in json.loads(text)["configs_timings"]:
        options = {name: value for name, value in configuration.items() if name not in ("kwargs", "pre_hook")}
        settings = _settings({**configuration["kwargs"], **options})
        milliseconds = times if isinstance(times, list) else [times]
        # the median and two quantiles: the median alone is a time of the kernel
        yield LogRow(settings, _outcome([float(milliseconds[0]) / 1e3]))


def _triton_log(text: str) -> Iterator[LogRow]:
    for found in _SELECTED.finditer(text):
        pairs = [pair.partition(":") for pair in found["settings"].split(",")]
        yield LogRow(_settings({name.strip(): _value(value.strip()) for name, _, value in pairs}))


def _inductor(text: str) -> Iterator[LogRow]:
    document = json.loads(text)
    yield LogRow(_settings({n: v for n, v in document.items() if n not in _NO_SETTINGS}))


def _inductor_log(text: str) -> Iterator[LogRow]:
    shapes: Shapes = ()
    for line in text.splitlines():
        if table := _TABLE.search(line):
            shapes = tuple(tuple(map(int, shape.split("x"))) for shape in re.findall(r"\d+(?:x\d+)*", table["shapes"]))
        elif choice := _CHOICE.search(line):
            pairs = [pair.strip().partition("=") for pair in choice["settings"].split(",") if pair.strip()]
            settings = _settings({name: _value(value) for name, _, value in pairs})
            refused = "" if settings else "a choice without settings is a library's kernel"
            yield LogRow(settings, _outcome([float(choice["milliseconds"]) / 1e3]), shapes, refused=refused)


def _metaschedule(text: str) -> Iterator[LogRow]:
    for line in text.splitlines():
        if line.strip():
            _, (trace, seconds, _, arguments, *_) = json.loads(line)
            shapes = tuple(tuple(map(int, argument[2])) for argument in arguments)
            settings, extents, refused = _tiles(*trace)
            outcome = None if seconds is None else _outcome([float(s) for s in seconds])
            yield LogRow(settings, outcome, shapes, extents, refused)


def _tiles(instructions: Sequence[Any], decisions: Sequence[Any]) -> tuple[dict[str, KnobValue], tuple[int, ...], str]:
    """Return the tiles that a trace gives the three loops of a product, the extents of these, and why there are none.

    on a CPU:  i0 j0 i1 j1 k0 i2 j2 k1 i3 j3             (structure SSRSRS)
    on a GPU:  block, vthread and thread of i and j, then k0 k1 i3 j3 k2 i4 j4   (structure SSSRRSRS)
    """
    decided = {int(place): decision for place, decision in decisions}
    loops: list[str] = []
    tiles: dict[int, list[int]] = {}
    for place, (kind, inputs, _, outputs) in enumerate(instructions):
        if kind == "GetLoops":
            loops = list(outputs)
        elif kind in ("Tensorize", "Blockize"):
            return {}, (), "the trace uses a tensor intrinsic, whose tiles are counted in units of its own"
        elif kind == "SamplePerfectTile" and place in decided and inputs[0] in loops and len(loops) == _LOOPS:
            tiles.setdefault(loops.index(inputs[0]), [int(factor) for factor in decided[place]])
    if sorted(tiles) != list(range(_LOOPS)):
        return {}, (), "the trace does not tile the three loops of a product by SamplePerfectTile"
    i, j, k = (tiles[axis] for axis in range(_LOOPS))
    extents = (math.prod(i), math.prod(j), math.prod(k))
    if (len(i), len(j), len(k)) == (4, 4, 2):
        settings = {"REGISTER_M": i[3], "REGISTER_N": j[3], "KC": k[1], "BLOCKS_M": i[0], "BLOCKS_N": j[0]}
        return dict(settings), extents, ""
    if (len(i), len(j), len(k)) == (5, 5, 3):
        block = {"BLOCK_M": math.prod(i[1:]), "BLOCK_N": math.prod(j[1:]), "BLOCK_K": k[1] * k[2]}
        return {**block, "threads": i[2] * j[2]}, extents, ""
    return {}, extents, f"tiles of {len(i)}, {len(j)} and {len(k)} levels are neither SSRSRS nor SSSRRSRS"


def _settings(found: Mapping[str, object]) -> dict[str, KnobValue]:
    """Return what says something: switches are numbers, and what is None was not chosen."""
    known = {name: int(value) if isinstance(value, bool) else value for name, value in found.items()}
    return {name: value for name, value in known.items() if isinstance(value, int | str)}


def _value(text: str) -> object:
    if text in ("True", "False", "None"):
        return {"True": True, "False": False, "None": None}[text]
    try:
        return int(text)
    except ValueError:
        return text.strip("'\"")


_LOOPS = 3
_SELECTED = re.compile(r"best config selected: (?P<settings>[^;\n]+)")
_TABLE = re.compile(r"AUTOTUNE \w+\((?P<shapes>[^)]*)\)")
_CHOICE = re.compile(r"^\W*(?P<name>\w+) (?P<milliseconds>[\d.]+|inf) ms [\d.]+%(?P<settings>.*)$")
_NO_SETTINGS = ("configs_hash", "found_by_coordesc", "time_taken_ms", "triton_cache_hash")
LOG_FORMS: Mapping[str, Callable[[str], Iterator[LogRow]]] = {
    "triton": _triton,
    "triton-log": _triton_log,
    "inductor": _inductor,
    "inductor-log": _inductor_log,
    "metaschedule": _metaschedule,
}
"""Name -> parser, see above."""
