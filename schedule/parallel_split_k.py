"""Products of few elements with long sums, whose sums are split among launches (``cuda_parallel_split_k``).

    C[i, j] = sum over k < 100000 of A[k, i] * B[k, j]
        ->  partial[s, i, j] = sum over k < 1000 of A[1000*s + k, i] * B[1000*s + k, j]     step 1: a batch of products
            C[i, j] = sum over s < 100 of partial[s, i, j]                                  step 2

A kernel class shares the sums of a tile among the CTAs of a cluster, eight at most. That leaves most of a device idle
where there are few tiles. CUTLASS calls a split through memory, as here, parallel split-K. Pairwise reductions, such as
distances, are split as products are, and so are correlations of long signals.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from math import prod

from ..core.errors import InvalidWorkload
from ..ir.buffer import Buffer
from ..ir.expr import Expr, Load, Var, index
from ..ir.rewrite import free_variables, fresh_name, loads_of, substitute
from ..te.contraction import Contraction, contraction_of, pairwise_reduction_of
from ..te.contraction_path import with_own_axes
from ..te.inline import inline_stages
from ..te.steps import step_of
from ..te.workload import Axis, Stage, Workload
from .problems.long_window import long_window_of
from .step_chain import Decomposer
from .tile.accumulation import Accumulation

_MOST_ELEMENTS = 1 << 18
_LEAST_SUM, _LEAST_SHARE = 4096, 16
"""Sums of so many terms, and of so many times the longer side, are long."""
_SLICES = (16, 32, 64, 128, 256)
"""Numbers of slices, or up to twice as many where these are equally long."""
_LEAST_SLICE = 256
_TILE_ELEMENTS, _BUSY = 64 * 64, 128
"""Elements of a tile of a product, roughly, and how many tiles and slices of them keep a device busy."""
_ALIGNMENT, _LINE = 8, 64
"""Slices of rows have multiples of so many elements, so that they begin at multiples of 16 bytes, and best of so many,
those of a line of 16-bit floats."""


def with_split_products(steps: Sequence[Workload], has_class: Callable[[Workload], bool]) -> tuple[Workload, ...]:
    """Return ``steps`` with the steps of one number of slices in the place of each product that has such: of the least
    number that keeps a device busy."""
    made, taken = list[Workload](), {b.name for step in steps for b in (*step.inputs, *step.output_buffers)}
    for step in steps:
        found = split_k_steps(step, has_class, taken)
        wanted = _BUSY * _TILE_ELEMENTS / max(prod(b.elements for b in step.output_buffers), 1)
        parts = next((own for slices, own in found if slices >= wanted), found[-1][1] if found else (step,))
        taken |= {b.name for part in parts for b in part.output_buffers}
        made += parts
    return tuple(made)


def split_k_steps(
    workload: Workload, has_class: Callable[[Workload], bool], names: Collection[str] = ()
) -> list[tuple[int, tuple[Workload, ...]]]:
    """Return the steps of a product for several numbers of slices. The axis of the sum that is split is the first one.
    What is left of it is a product of its own. New tensors have other ``names``."""
    inlined = inline_stages(workload)
    total, *rest = inlined.stages
    found = contraction_of(total) or pairwise_reduction_of(total) or _correlation_of(inlined)
    if workload.dynamic or workload.skews or found is None or any(s.reducer is not None for s in rest):
        return []
    total = found.stage
    extents = {a.name: a.extent for a in (*total.axes, *total.reduce_axes)}
    sides = [prod(extents[name] for name in side) for side in (found.rows, found.columns)]
    length = prod(extents[name] for name in found.shared)
    narrow = total.tensor.dtype.is_float and total.tensor.dtype.bits < 32
    few = total.tensor.elements <= _MOST_ELEMENTS and length >= max(_LEAST_SUM, _LEAST_SHARE * max(sides))
    if narrow or not few or total.reduce_axes[0].name not in found.shared:
        return []
    batch = sum(a.name in found.batch for a in total.axes)
    least = [_equal_slices(total, slices) for slices in _SLICES if slices * _LEAST_SLICE <= length]
    steps = [(slices, _in_parts(inlined, total, rest, slices, batch, names)) for slices in least]
    return [(slices, own) for slices, own in steps if own and all(map(has_class, own))]


def _equal_slices(total: Stage, least: int) -> int:
    """Return into how many slices a sum is cut: ``least``, or more where that leaves no rest, which is a launch of its
    own. Slices of whole lines are the best ones, then those that begin at whole units."""
    extent = total.reduce_axes[0].extent
    for unit, most in ((_LINE, 3 * least // 2), (_ALIGNMENT, 2 * least)) if _along_rows(total) else ((1, 2 * least),):
        equal = (slices for slices in range(least, most) if extent % (slices * unit) == 0)
        if (found := next(equal, None)) is not None:
            return found
    return least


def _along_rows(total: Stage) -> bool:
    """Return whether the axis that is split goes along rows of any tensor."""
    first = total.reduce_axes[0].name
    return any(first in free_variables(load.indices[-1]) for load in loads_of(total.body))


def _correlation_of(workload: Workload) -> Contraction | None:
    """Return the sums of a correlation of long signals as those of a product, whose rows are the lags. The first axis
    of the sums is that along which the signals are long."""
    window = long_window_of(workload)
    if window is None:
        return None
    total, lag = workload.stages[0], window.width.axis.name
    total = replace(total, reduce_axes=(window.window, *window.outer_axes))
    names = [a.name for a in total.axes]
    batch, shared = tuple(names[: names.index(lag)]), tuple(a.name for a in total.reduce_axes)
    return Contraction(total, total.body, total.body, batch, (lag,), (), shared)


def _in_parts(
    workload: Workload, total: Stage, rest: list[Stage], slices: int, batch: int, names: Collection[str]
) -> tuple[Workload, ...]:
    """Return the steps; none where a tensor is beyond the limits. ``batch``: how many axes of a batch there are."""
    first, *others = total.reduce_axes
    length = first.extent // slices
    if _along_rows(total):
        length -= length % _ALIGNMENT if length > _ALIGNMENT else 0
    left = first.extent - slices * length
    if not length:
        return ()
    taken = {*names, *(b.name for b in workload.inputs), *(s.name for s in workload.stages)}
    taken |= {a.name for s in workload.stages for a in (*s.axes, *s.reduce_axes)}
    part, term = Axis(fresh_name("part", taken), slices), Axis(fresh_name("term", taken), length)
    taken |= {part.name, term.name}

    def summed(name: str, axes: tuple[Axis, ...], over: Axis, begin: Expr) -> Stage:
        tensor = Buffer(fresh_name(name, taken), tuple(a.extent for a in axes), total.tensor.dtype)
        taken.add(tensor.name)
        body = substitute(total.body, {first.name: begin + Var(over.name)})
        return with_own_axes(Stage(tensor, axes, body, (over, *others), total.reducer), taken)

    partial = summed("partial", (*total.axes[:batch], part, *total.axes[batch:]), term, Var(part.name) * length)
    at = tuple(Var(a.name) for a in total.axes)
    final = replace(total, body=Load(partial.tensor, (*at[:batch], Var(part.name), *at[batch:])), reduce_axes=(part,))
    own = [partial]
    last = [final]
    if left:
        own.append(summed("end", total.axes, replace(term, extent=left), index(slices * length)))
        assert total.reducer is not None
        combine = Accumulation(total.reducer, total.tensor.dtype, total.tensor.dtype).combine
        sums = replace(total.tensor, name=fresh_name(f"{total.name}_parts", taken))
        last = [
            with_own_axes(replace(final, tensor=sums), taken),
            Stage(total.tensor, total.axes, combine([Load(sums, at)], [Load(own[1].tensor, at)])[0]),
        ]
    try:
        made = [s.tensor for s in own]
        first_steps = [step_of(workload, (), [s], (s.name,)) for s in own]
        return (*first_steps, step_of(workload, made, [*last, *rest], workload.outputs))
    except InvalidWorkload:
        return ()


PARALLEL_SPLIT_K = Decomposer(
    split_k_steps,
    knob="split_k_slices",
    meaning="how many slices the sums of a product have, each of which is a product of a batch",
    takes="products of few elements with long sums, kept in 32 bits or more",
    beside_classes=True,
)
"""Of products whose sums are split among launches."""
