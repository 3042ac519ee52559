"""The CPU loop sketch: any workload as tiled, vectorised, unrolled and parallel loops.

Light stages are inlined, the rest is computed in groups (``fusion``). The group with the most work has the knobs, and
those like it (other layers) take the same setting; the rest take a plain one of their own kind.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from ....core.schedule import KnobValue, Schedule
from ....core.target import Target
from ....ir.stmt import Kernel, Seq, seq
from ....te.workload import Workload
from ...loop_nest.nest import loop_nest
from ...loop_nest.tree import names_in, stored_outside
from ...space.columns import Bools, Columns, codes_of
from ...space.constraint import Constraint
from ...space.knob import Knob
from ...tile_sketch import Plan, TileSketch
from .default_setting import plain_setting
from .editor import Editor
from .fusion import FusionPlan, Group, paddings, plan
from .knobs import (
    CACHED,
    REGISTER_KNOBS,
    STREAMED,
    padding_knob,
    register_legal,
    row_knobs,
    scalar_knobs,
    store_knob,
    tile_knobs,
    tile_legal,
    tile_shape,
)
from .quantities import QUANTITIES, derive
from .row_loops import RowSetting, lower_rows, vectorise_stage
from .tile_loops import INLINE, STORE, TileSetting, lower_tiles
from .tiles import tiles_of, vector_registers

LARGE_BYTES = 8 << 20
"""Of outputs that may gain by going past the caches: much less, and a reader finds them there."""

Legal = Callable[[Columns], Bools]

DEFAULTS: Mapping[str, KnobValue] = {
    **asdict(TileSetting()),
    "padding": STORE,
    "store": CACHED,
}
"""What a knob stands for in a workload that does not have it."""


@dataclass(frozen=True)
class LoopsPlan(Plan):
    """The loop nest of one workload; the group with the most work has the knobs."""

    workload: Workload
    target: Target

    @property
    def defaults(self) -> Mapping[str, KnobValue]:
        return DEFAULTS

    @cached_property
    def _main(self) -> Group:
        return _fusion(self.workload, self.target, STORE).main

    @cached_property
    def knobs(self) -> tuple[Knob, ...]:
        return _knobs(self.workload, self._main, self.target)

    @cached_property
    def constraints(self) -> tuple[Constraint, ...]:
        legal_first = _legality(self._main, self.target)[0]
        names = tuple(k.name for k in self.knobs)
        return (
            Constraint(
                "the register tile fits the vector registers and its body stays small", REGISTER_KNOBS, legal_first
            ),
            Constraint(
                "registers, code size and local memory suffice and no other setting means the same",
                names,
                _legal(self.workload, self._main, self.target),
            ),
        )

    def derive(self, columns: Columns) -> Mapping[str, NDArray[np.float64]]:
        return derive(self.workload, self._main, self.target, columns)

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        workload, target, values = self.workload, self.target, dict(setting)
        given = [Schedule.of("", 0, setting)]
        columns = Columns(self.knobs, codes_of(self.knobs, given), DEFAULTS)
        chosen = _fusion(workload, target, str(values.get("padding", STORE)))
        tuned = [g is chosen.main or _takes(workload, g, target, self.knobs, columns) for g in chosen.groups]
        works = []
        for group, own in zip(chosen.groups, tuned, strict=True):
            taken = values if own else plain_setting(group, target, DEFAULTS)
            works.append(_Work(group, tuple({**DEFAULTS, **taken}.items()), not own))
        nest = loop_nest(chosen.workload)
        kernel = _lower_apart(nest, works) or _lowered(nest, tuple(works), frozenset())
        streamed = workload.outputs if values.get("store") == STREAMED else ()
        only_maps = not any(group.reductions for group in chosen.groups)  # vectors in, vectors out
        return replace(kernel, non_temporal=frozenset(streamed), minimal_passes=only_maps)


@lru_cache(maxsize=16)
def _fusion(workload: Workload, target: Target, padding: str) -> FusionPlan:
    return plan(workload, inline_paddings=padding == INLINE, threads=target.threads)


def _knobs(workload: Workload, group: Group, target: Target) -> tuple[Knob, ...]:
    own = {
        "tile": lambda: tile_knobs(tiles_of(group), target),
        "row": lambda: row_knobs(group, target),
        "scalar": lambda: scalar_knobs(group, target),
    }[group.kind]()
    own = (*own, padding_knob()) if paddings(workload) else own
    large = sum(b.bytes for b in workload.output_buffers) >= LARGE_BYTES
    return (*own, store_knob()) if large and group.root.name in workload.outputs else own


def _legality(group: Group, target: Target) -> tuple[Legal, Legal]:
    """Legality by the register knobs alone, and by all."""
    if group.kind == "tile":
        tiles = tiles_of(group)
        return (lambda c: register_legal(tiles, target, c)), (lambda c: tile_legal(tiles, target, c))
    return _always, _always


def _legal(workload: Workload, main: Group, target: Target) -> Legal:
    """Legality by all knobs, of the whole setting: where padding is inline, another group may have the most work, and
    the sums of its register tile must fit the registers, too."""
    inline = _fusion(workload, target, INLINE).main

    def legal(columns: Columns) -> NDArray[np.bool_]:
        ok = _legality(main, target)[1](columns)
        if inline.kind == "tile":
            sums = tile_shape(tiles_of(inline), target, columns).accumulators
            ok &= ~columns.flags("padding", INLINE) | (sums <= vector_registers(target))
        return ok

    return legal


def _takes(workload: Workload, group: Group, target: Target, knobs: tuple[Knob, ...], columns: Columns) -> bool:
    """Whether a setting of ``knobs`` is one of this group's, too."""
    own = [(k.name, k.values) for k in _knobs(workload, group, target)]
    return own == [(k.name, k.values) for k in knobs] and bool(_legality(group, target)[1](columns)[0])


def _always(columns: Columns) -> NDArray[np.bool_]:
    return np.ones(len(columns), dtype=bool)


@dataclass(frozen=True, slots=True)
class _Work:
    """A group with its setting. ``plain``: the same one in every schedule."""

    group: Group
    setting: tuple[tuple[str, KnobValue], ...]
    plain: bool


def _lower_apart(kernel: Kernel, works: Sequence[_Work]) -> Kernel | None:
    """The kernel with every group lowered in a small kernel of its own, which is searched far faster, plain ones first:
    they come out alike for all candidates. None where two groups gave the same name to something."""
    statements = kernel.body.statements if isinstance(kernel.body, Seq) else (kernel.body,)
    parts: dict[int, Kernel] = {}
    for n in sorted(range(len(works)), key=lambda n: not works[n].plain):
        stages = {stage.name for stage in works[n].group.stages}
        own = replace(kernel, body=seq(*(s for s in statements if stored_outside(s) <= stages)))
        elsewhere = names_in(kernel).union(*map(names_in, parts.values())) - names_in(own)
        parts[n] = _lowered(own, (works[n],), frozenset(elsewhere))
    ordered = [parts[n] for n in range(len(works))]
    bound = [name for part in ordered for name in names_in(replace(part, inputs=(), outputs=(), workspace=()))]
    if len(set(bound)) < len(bound):
        return None
    workspace = [b for b in kernel.workspace if all(b in part.workspace for part in ordered)]
    added = [b for part in ordered for b in part.workspace if b not in kernel.workspace]
    return replace(kernel, workspace=(*workspace, *added), body=seq(*(part.body for part in ordered)))


@lru_cache(maxsize=64)
def _lowered(kernel: Kernel, works: tuple[_Work, ...], elsewhere: frozenset[str]) -> Kernel:
    """``elsewhere``: names that mean something beside this kernel."""
    editor = Editor(kernel, elsewhere)
    for work in works:
        _lower_group(editor, work.group, dict(work.setting))
    return editor.kernel


def _lower_group(editor: Editor, group: Group, values: Mapping[str, KnobValue]) -> None:
    def number(name: str) -> int:
        return int(values[name])

    if group.kind == "tile":
        setting = TileSetting(**{f.name: values[f.name] for f in fields(TileSetting)})  # type: ignore[arg-type]
        lower_tiles(editor, tiles_of(group), setting)
        return
    row_setting = RowSetting(number("lanes"), number("vectors"), number("rows"))
    if group.kind == "row":
        lower_rows(editor, group, row_setting)
    else:
        vectorise_stage(editor, group.root, None, row_setting, skip=0)


CPU_LOOPS = TileSketch("cpu_loops", 4, QUANTITIES, LoopsPlan, kind="llvm", generic=True)
