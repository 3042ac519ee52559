"""Convolutions of images that are padded by what stands in them (replicated, reflected, circular), in two steps:

    Y[y] = sum over r < 3 of X[min(max(y + r - 1, 0), 9)] * W[r]

    ->  P[u] = X[min(max(u - 1, 0), 9)]        u < 12
        Y[y] = sum over r < 3 of P[y + r] * W[r]

Any function of one sum of axes is taken for such a padding, such as the quotient by which an image is enlarged.
"""

from dataclasses import dataclass, replace

from ..core.errors import InvalidWorkload
from ..ir.buffer import Buffer
from ..ir.expr import Expr, Load, Select, Var, rebuild
from ..ir.linear_form import LinearForm
from ..ir.rewrite import fresh_name, substitute
from .channels_last import Decomposition, channels_last_steps
from .contraction import contraction_of
from .inline import inline_stages
from .places import moved_place, window_place_of
from .region import Region
from .steps import step_of
from .workload import Axis, Stage, Workload

PADDED = "padded"
"""Names of decompositions that pad images first begin so."""


def padded_steps(workload: Workload) -> list[Decomposition]:
    """Return the decompositions of such a convolution: as above, and with the steps of one with channels first, whose
    copy pads. There are none where the workload is no such convolution, or has dynamic dimensions."""
    try:
        padded = None if workload.dynamic or workload.skews else _padded_convolution(workload)
        if padded is None:
            return []
        others = [(f"{PADDED}_{name}", padded.steps(steps)) for name, steps in channels_last_steps(padded.rest)]
        return [(PADDED, padded.steps((padded.rest,))), *others]
    except InvalidWorkload:  # what is padded is beyond the limits of tensors
        return []


@dataclass(frozen=True, slots=True)
class _PaddedConvolution:
    """``whole`` as the stages that pad, and a workload that reads their tensors."""

    whole: Workload
    padding: tuple[Stage, ...]
    rest: Workload

    def steps(self, rest: tuple[Workload, ...]) -> tuple[Workload, ...]:
        """Return the steps of the workload, given those of the rest. Where one of these alone reads what is padded, and
        only moves it, it pads. Raises InvalidWorkload where a step is none."""
        names = tuple(s.name for s in self.padding)
        readers = [n for n, step in enumerate(rest) if any(b.name in names for b in step.inputs)]
        reader = rest[readers[0]]
        if len(readers) > 1 or not all(isinstance(s.body, Load) for s in reader.stages):
            return (step_of(self.whole, (), self.padding, names), *rest)
        moved = step_of(self.whole, (), (*self.padding, *reader.stages), reader.outputs)
        return (*rest[: readers[0]], inline_stages(moved), *rest[readers[0] + 1 :])


def _padded_convolution(workload: Workload) -> _PaddedConvolution | None:
    """Return the workload as such a convolution; None where it is anything else. Raises InvalidWorkload where a tensor
    is beyond the limits."""
    whole = inline_stages(workload)
    total, *further = whole.stages
    if any(s.reducer is not None for s in further) or contraction_of(total) is None:
        return None
    taken = {b.name for b in whole.inputs} | {s.name for s in whole.stages}
    taken |= {a.name for s in whole.stages for a in (*s.axes, *s.reduce_axes)}
    box = {a.name: (0, a.extent - 1) for a in (*total.axes, *total.reduce_axes)}
    reduced = {a.name for a in total.reduce_axes}
    made = dict[tuple[str, tuple[Expr, ...]], Stage]()

    def fresh(base: str) -> str:
        taken.add(name := fresh_name(base, taken))
        return name

    def padded(load: Load, region: Region) -> Load:
        places = [window_place_of(i, reduced) for i in load.indices]
        if not any(places):
            return load
        at, extents, read = list[Expr](), list[int](), list[Expr]()
        for i, place, extent in zip(load.indices, places, load.buffer.shape, strict=True):
            low, high = (0, extent - 1) if place is None else region.bounds(place)
            name = f"u{len(at)}"
            extents.append(high - low + 1)
            at.append(Var(name) if place is None else moved_place(i, place, LinearForm({Var(name): 1}, low)))
            read.append(i if place is None else (place - low).to_expr())
        key = load.buffer.name, tuple(at)
        if key not in made:
            tensor = Buffer(fresh(f"{load.buffer.name}_padded"), tuple(extents), load.dtype)
            axes = tuple(Axis(fresh(f"u{d}"), extent) for d, extent in enumerate(extents))
            own = {f"u{d}": Var(a.name) for d, a in enumerate(axes)}
            made[key] = Stage(tensor, axes, Load(load.buffer, tuple(substitute(i, own) for i in at)))
        return Load(made[key].tensor, tuple(read))

    def rewritten(e: Expr, region: Region) -> Expr:
        if isinstance(e, Load):
            return padded(e, region)
        regions = [region] * len(e.children)
        if isinstance(e, Select):
            regions[1:] = region.where(e.condition, True), region.where(e.condition, False)
        return rebuild(e, [rewritten(child, at) for child, at in zip(e.children, regions, strict=True)])

    body = rewritten(total.body, Region(box))
    if not made:
        return None
    stages = tuple(made.values())
    rest = step_of(whole, [s.tensor for s in stages], (replace(total, body=body), *further), whole.outputs)
    return _PaddedConvolution(whole, stages, rest)
