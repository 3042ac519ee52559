"""Writes any workload as tiled, vectorised, unrolled and parallel loops (sketch ``cpu_loops``).

Light stages are inlined, and the rest is computed in groups (``fusion``). The group with the most work has the knobs.
Groups like it, such as other layers, take the same setting; the rest take a default setting of their own kind.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import cast

import numpy as np

from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.stmt import Kernel, Seq, seq
from ....te.workload import Workload
from ...loop_nest.nest import loop_nest
from ...loop_nest.tree import names_in, stored_outside
from ...sketch import Peaks
from ...space.columns import Bools, Columns, Floats, columns_of_setting, row_of_record
from ...space.constraint import Constraint
from ...space.knob import Knob
from ...tile_sketch import Plan, TileSketch
from ..arithmetic import overlapped
from ..peaks import CpuPeaks, cpu_peaks
from ..shared_knobs import CACHED, NON_TEMPORAL, store_knob
from .constraints import inline_constraint, tile_constraints
from .default_setting import default_setting
from .editor import LoopEditor
from .fusion import FusedGroup, FusionPlan, fusion_plan, paddings, shape
from .knobs import padding_knob, row_knobs, scalar_knobs, tile_knobs
from .prior import group_seconds, memory_seconds
from .promising import keeps_rules, promising
from .quantities import QUANTITIES, derive
from .row_loops import RowLoopSetting, lower_rows, vectorise_stage
from .sizes import LoopTileSizes, tile_sizes
from .tile_loops import INLINE, STORE, TileLoopSetting, lower_tiles
from .tiles import tiles_of

LARGE_BYTES = 8 << 20
"""Outputs of so many bytes may gain by going past the caches. Where there are much fewer, a reader finds them there."""

DEFAULTS: Mapping[str, KnobValue] = {
    **asdict(TileLoopSetting()),
    "padding": STORE,
    "store": CACHED,
}
"""What a knob stands for in a workload that does not have it."""


@dataclass(frozen=True)
class CpuLoopsPlan(Plan):
    """The loop nest of one workload; the group with the most work has the knobs."""

    workload: Workload
    target: Target

    @property
    def defaults(self) -> Mapping[str, KnobValue]:
        return DEFAULTS

    @cached_property
    def _main(self) -> FusedGroup:
        return _fusion(self.workload, self.target, STORE).main

    @cached_property
    def _inlined_main(self) -> FusedGroup:
        """The group with the most work where padding is inlined."""
        return _fusion(self.workload, self.target, INLINE).main

    @cached_property
    def knobs(self) -> tuple[Knob, ...]:
        return _knobs(self.workload, self._main, self.target)

    @cached_property
    def constraints(self) -> tuple[Constraint, ...]:
        rules = _constraints(self._main, self.target)
        if self._inlined_main.kind == "tile" and any(k.name == "padding" for k in self.knobs):
            rules = (*rules, inline_constraint(tiles_of(self._inlined_main), self.target))
        return rules

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        if self._main.kind != "tile":
            return np.ones(len(columns), dtype=bool)
        return promising(tiles_of(self._main), self.target, columns)

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> Floats:
        rates = cpu_peaks(self.target, peaks)
        seconds = group_seconds(self._main, columns, self.derive(columns), rates) + self._rest_seconds(STORE, rates)
        inlined = columns.flags("padding", INLINE)
        if inlined.any():
            found = derive(self.workload, self._inlined_main, self.target, columns)
            own = group_seconds(self._inlined_main, columns, found, rates) + self._rest_seconds(INLINE, rates)
            seconds = np.where(inlined, own, seconds)
        return overlapped(seconds, memory_seconds(self.workload, self._main, columns, rates))

    def _rest_seconds(self, padding: str, rates: CpuPeaks) -> float:
        """Return what the groups take that are not of the main one's shape, by their default settings."""
        chosen, total = _fusion(self.workload, self.target, padding), 0.0
        for group in chosen.groups:
            if group.root.name in paddings(chosen.workload) or shape(group) == shape(chosen.main):
                continue
            setting = default_setting(group, self.target, DEFAULTS)
            columns = columns_of_setting(_knobs(self.workload, group, self.target), setting, DEFAULTS)
            found = derive(self.workload, group, self.target, columns)
            total += float(group_seconds(replace(group, same_shape=1), columns, found, rates)[0])
        return total

    def derive(self, columns: Columns) -> Mapping[str, Floats]:
        return derive(self.workload, self._main, self.target, columns)

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        workload, target, values = self.workload, self.target, dict(setting)
        columns = columns_of_setting(self.knobs, setting, DEFAULTS)
        chosen = _fusion(workload, target, str(values.get("padding", STORE)))
        tuned = [g is chosen.main or self._takes(g, columns) for g in chosen.groups]
        settings = []
        for group, own in zip(chosen.groups, tuned, strict=True):
            taken = values if own else default_setting(group, target, DEFAULTS)
            settings.append(_GroupSetting(group, tuple({**DEFAULTS, **taken}.items()), not own))
        nest = loop_nest(chosen.workload)
        kernel = _lower_separately(nest, settings) or _lowered(nest, tuple(settings), frozenset())
        non_temporal = workload.outputs if values.get("store") == NON_TEMPORAL else ()
        only_maps = not any(group.reductions for group in chosen.groups)  # vectors in, vectors out
        return replace(kernel, non_temporal=frozenset(non_temporal), minimal_passes=only_maps)

    def _takes(self, group: FusedGroup, columns: Columns) -> bool:
        """Return whether another group takes the setting of the main one. It has the same knobs, the setting is legal
        for it, and it is as promising as for the main group."""
        own = [(k.name, k.values) for k in _knobs(self.workload, group, self.target)]
        if own != [(k.name, k.values) for k in self.knobs]:
            return False
        if not all(c.holds(columns)[0] for c in _constraints(group, self.target)):
            return False
        return _is_promising(group, self.target, columns) or not _is_promising(self._main, self.target, columns)


@lru_cache(maxsize=16)
def _fusion(workload: Workload, target: Target, padding: str) -> FusionPlan:
    return fusion_plan(workload, inline_paddings=padding == INLINE, threads=target.threads)


def _knobs(workload: Workload, group: FusedGroup, target: Target) -> tuple[Knob, ...]:
    own = {
        "tile": lambda: tile_knobs(tiles_of(group), target),
        "row": lambda: row_knobs(group, target),
        "scalar": lambda: scalar_knobs(group, target),
    }[group.kind]()
    own = (*own, padding_knob()) if paddings(workload) else own
    large = sum(b.bytes for b in workload.output_buffers) >= LARGE_BYTES
    return (*own, store_knob()) if large and group.root.name in workload.outputs else own


def _constraints(group: FusedGroup, target: Target) -> tuple[Constraint, ...]:
    """Return the rules of a group. Every setting of a row group or a scalar group is legal."""
    return tile_constraints(tiles_of(group), target) if group.kind == "tile" else ()


def _is_promising(group: FusedGroup, target: Target, setting: Columns) -> bool:
    """Return whether one setting keeps the rules of thumb of a group."""
    return group.kind != "tile" or bool(keeps_rules(tiles_of(group), target, setting)[0])


@dataclass(frozen=True, slots=True)
class _GroupSetting:
    """A group with its setting. ``default``: whether it is the same one in every schedule."""

    group: FusedGroup
    setting: tuple[tuple[str, KnobValue], ...]
    default: bool


def _lower_separately(kernel: Kernel, settings: Sequence[_GroupSetting]) -> Kernel | None:
    """Return the kernel with every group lowered in a small kernel of its own, which is searched far faster.

    Groups with a default setting come first: they are the same for all candidates, and so are found in the cache. None
    where two groups gave the same name to something.
    """
    statements = kernel.body.statements if isinstance(kernel.body, Seq) else (kernel.body,)
    lowered: dict[int, Kernel] = {}
    for n in sorted(range(len(settings)), key=lambda n: not settings[n].default):
        stages = {stage.name for stage in settings[n].group.stages}
        own = replace(kernel, body=seq(*(s for s in statements if stored_outside(s) <= stages)))
        elsewhere = names_in(kernel).union(*map(names_in, lowered.values())) - names_in(own)
        lowered[n] = _lowered(own, (settings[n],), frozenset(elsewhere))
    ordered = [lowered[n] for n in range(len(settings))]
    bound = [name for own in ordered for name in names_in(replace(own, inputs=(), outputs=(), workspace=()))]
    if len(set(bound)) < len(bound):
        return None
    workspace = [b for b in kernel.workspace if all(b in own.workspace for own in ordered)]
    added = [b for own in ordered for b in own.workspace if b not in kernel.workspace]
    return replace(kernel, workspace=(*workspace, *added), body=seq(*(own.body for own in ordered)))


@lru_cache(maxsize=64)
def _lowered(kernel: Kernel, settings: tuple[_GroupSetting, ...], elsewhere: frozenset[str]) -> Kernel:
    """Return ``kernel`` with its groups lowered. ``elsewhere`` has the names that are taken outside of this kernel."""
    editor = LoopEditor(kernel, elsewhere)
    for each in settings:
        _lower_group(editor, each.group, dict(each.setting))
    return editor.kernel


def _lower_group(editor: LoopEditor, group: FusedGroup, values: Mapping[str, KnobValue]) -> None:
    def number(name: str) -> int:
        return int(values[name])

    if group.kind == "tile":
        tiles = tiles_of(group)
        setting = TileLoopSetting(**{f.name: values[f.name] for f in fields(TileLoopSetting)})  # type: ignore[arg-type]
        sizes = row_of_record(tile_sizes(tiles, columns_of_setting((), {}, values)), 0)
        lower_tiles(editor, tiles, setting, cast("LoopTileSizes[int]", sizes))
        return
    row_setting = RowLoopSetting(number("lanes"), number("vectors"), number("rows"))
    if group.kind == "row":
        lower_rows(editor, group, row_setting)
    else:
        vectorise_stage(editor, group.root, None, row_setting, skip=0)


CPU_LOOPS = TileSketch("cpu_loops", 4, QUANTITIES, CpuLoopsPlan, kind="llvm", generic=True)
