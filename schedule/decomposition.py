"""Decompositions of workloads that no kernel class takes as a whole (``cuda_decomposed``).

    top[i, k]   = max over j of X[i, j, k]                             step 1: a reduction of columns
    total[i, k] = sum over j of exp(X[i, j, k] - top[i, k])            step 2: another one
    Y[i, j, k]  = exp(X[i, j, k] - top[i, k]) / total[i, k]            step 3: a pointwise map

``stages`` gives each stage a kernel, or several stages one where a class takes them together. A stage that has no class
may have one in two steps: a reduction over several axes as two reductions, and a sum of products whose factors are more
than loads as a kernel that computes these factors and a product (im2col is that of a convolution). Distances and other
reductions of functions of two such factors are the same. ``joined_axes`` are the same, with the axes of such a sum as
one. With ``gathered``, what is read at loaded indices, such as the rows of an embedding, is copied first. With
``widened``, inputs of 8 bits are copied as float16, which holds them, for a class that takes that, such as attention.
With ``doubled_scans`` running sums that decay take a few rounds (``te.decayed_scans``).
With ``gathered_last`` sums at loaded indices, such as products with the experts of rows, are computed at all indices.
With ``reduced_products`` there is a product for each direction in which it is reduced. ``phased`` is the workload with
axes for quotients and remainders (``te.phases``), and ``single_products`` that with one product in each sum
(``te.sums_of_products``). ``levels`` has first what reads no other stage, then what reads that, so that more of them
are computed together. With ``as_written`` what several stages read, such as the weights of attention in its gradients,
is computed once and stored as the workload says it: where that is less, since it has 16 bits. ``outer_first`` is for
reductions of much to few results that have no class in steps either: the generic sketch reduces along the last axes,
and a class what is left, where the generic sketch alone would have a block for each result. With ``blocks`` a processor
reduces a few neighbours first, where a matrix is read across its rows. With ``split_k`` behind a name, long sums of
products are split (``parallel_split_k``).
``te.softmax_chunks`` has one of long rows on a processor, ``te.channels_last`` those of convolutions with channels
first, and ``te.padding_modes`` those of images that are padded by what stands in them (``padded``).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, combinations
from math import inf, prod

from ..core.dtypes import DType, float16, float32, int32
from ..core.errors import InvalidWorkload
from ..ir.buffer import Buffer
from ..ir.expr import Cast, Compare, Const, Expr, Load, Select, Var, rebuild, walk
from ..ir.linear_form import affine_form
from ..ir.rewrite import free_variables, fresh_name, loads_of, map_expr, map_loads, substitute
from ..te.channels_last import channels_last_steps
from ..te.contraction import contraction_of
from ..te.contraction_path import with_own_axes
from ..te.decayed_scans import with_doubled_scans
from ..te.functions import within
from ..te.inline import inline_stages
from ..te.narrow_floats import cast_outside
from ..te.padding_modes import padded_steps
from ..te.phases import with_phases
from ..te.reduced_products import with_reduced_products
from ..te.softmax_chunks import softmax_chunk_steps
from ..te.steps import run_of, step_of
from ..te.sums_of_products import with_single_products
from ..te.workload import Axis, Reducer, Stage, Workload
from .parallel_split_k import with_split_products
from .pixel_blocks import with_pixel_blocks
from .reduction_parts import (
    LARGE_BLOCKS,
    SMALL_BLOCKS,
    element_of,
    in_order_of_load,
    largest,
    reads_across,
    reductions_in_parts,
)
from .step_chain import Decomposer
from .tile.delinearize import axis_indices

STAGES, JOINED_AXES, GATHERED, WIDENED, PIXEL_BLOCKS = "stages", "joined_axes", "gathered", "widened", "pixel_blocks"
PHASED, REDUCED_PRODUCTS, SINGLE_PRODUCTS, SPLIT_K = "phased", "reduced_products", "single_products", "split_k"
LEVELS, AS_WRITTEN, GATHERED_LAST, DOUBLED_SCANS = "levels", "as_written", "gathered_last", "doubled_scans"
OUTER_FIRST, BLOCKS = "outer_first", "blocks"
"""The names of decompositions. Names of tensors that are copied from loaded indices begin with ``gathered``."""
_MANY_RESULTS = 2048
"""So many results keep a device busy, a warp or a thread for each."""
_ROW_ALIGNMENT_BYTES = 16
"""Rows of tensors that are multiplied begin at multiples of so many bytes, where axes are joined: TMA wants that."""


def decompositions(workload: Workload, has_class: Callable[[Workload], bool]) -> list[tuple[str, tuple[Workload, ...]]]:
    """Return the decompositions of a workload by name, each as its steps. There are none where a step is left to the
    generic sketch."""
    if workload.dynamic or workload.skews:
        return []
    found: dict[str, tuple[Workload, ...]] = {}
    whole = inline_stages(workload)

    def add(
        name: str,
        given: Workload | None,
        most_bytes: float = inf,
        has_class: Callable[[Workload], bool] = has_class,
    ) -> None:
        try:
            steps = () if given is None else _stage_steps(given, has_class, name)
        except InvalidWorkload:  # an intermediate beyond the limits of tensors
            return
        if len(steps) > 1 and steps not in found.values() and _handed_bytes(steps) < most_bytes:
            found[name] = steps

    add(STAGES, whole)
    add(JOINED_AXES, whole)
    add(GATHERED, _with_gathers(whole))
    found |= dict(channels_last_steps(workload)) | dict(padded_steps(workload))
    add(WIDENED, _with_widened_inputs(whole))
    add(PHASED, with_phases(workload))
    add(REDUCED_PRODUCTS, with_reduced_products(whole))
    add(SINGLE_PRODUCTS, with_single_products(whole))
    add(LEVELS, _by_level(whole))
    for name in (n for n in (STAGES, SINGLE_PRODUCTS) if n in found):
        split = with_split_products(found[name], has_class)
        if split != found[name]:
            found[f"{name}_{SPLIT_K}"] = split
    add(GATHERED_LAST, _with_gathers_last(whole))
    add(DOUBLED_SCANS, with_doubled_scans(whole))
    add(AS_WRITTEN, _as_written(workload), min(map(_handed_bytes, found.values()), default=inf))
    by_classes = [(name, steps) for name, steps in found.items() if all(map(has_class, steps))]
    if by_classes:
        return by_classes
    add(OUTER_FIRST, whole, has_class=lambda step: has_class(step) or _is_left_alone(step))
    return [(name, steps) for name, steps in found.items() if name == OUTER_FIRST and has_class(steps[-1])]


def _is_left_alone(step: Workload) -> bool:
    """Return whether the generic sketch keeps a device busy with a step: one with many results."""
    return len(step.stages) == 1 and step.stages[0].tensor.elements >= _MANY_RESULTS


def pairwise_decompositions(
    workload: Workload, has_class: Callable[[Workload], bool]
) -> list[tuple[str, tuple[Workload, ...]]]:
    """Return the decomposition of one pairwise reduction, and what follows from it, whose factors are computed first.
    It reads no more than its tensors, and stores nothing for each term, so that it is as good as a class."""
    total, *rest = inline_stages(workload).stages
    if any(s.reducer is not None for s in rest) or next(_pairs(total, set()), None) is None:
        return []
    return [(name, steps) for name, steps in decompositions(workload, has_class) if name == STAGES]


def correlation_decompositions(
    workload: Workload, has_class: Callable[[Workload], bool]
) -> list[tuple[str, tuple[Workload, ...]]]:
    """Return the decomposition of a correlation of neighbouring pixels, if a workload is one. What is multiplied is
    copied first, each block for itself, since matrix units multiply whole rows."""
    given = with_pixel_blocks(workload)
    if given is None:
        return []
    try:
        steps = _stage_steps(given, has_class, PIXEL_BLOCKS)
    except InvalidWorkload:  # an intermediate beyond the limits of tensors
        return []
    return [(PIXEL_BLOCKS, steps)] if all(map(has_class, steps)) else []


def cpu_decompositions(
    workload: Workload, has_class: Callable[[Workload], bool]
) -> list[tuple[str, tuple[Workload, ...]]]:
    """Return the decompositions of a workload for a processor, where the generic sketch is as good as a class for
    everything but sums of products, and no class reduces these at once. Long rows of a softmax have one in chunks, and
    reductions across rows one in ``blocks``."""
    found = decompositions(workload, lambda step: has_class(step) or not any(map(contraction_of, step.stages)))
    own = (REDUCED_PRODUCTS, LEVELS, AS_WRITTEN, GATHERED_LAST, DOUBLED_SCANS, OUTER_FIRST)
    left_out = [name for name, _ in found if name in own or name.endswith(SPLIT_K)]
    return [
        *((name, steps) for name, steps in found if name not in left_out),
        *softmax_chunk_steps(workload),
        *_block_steps(workload),
    ]


def _block_steps(workload: Workload) -> list[tuple[str, tuple[Workload, ...]]]:
    """Return the steps of reductions that read across rows, in blocks."""
    whole = inline_stages(workload)
    found = [contraction_of(stage) for stage in whole.stages]
    if workload.dynamic or not any(map(reads_across, whole.stages)) or any(c and c.rows and c.columns for c in found):
        return []
    try:
        steps = _stage_steps(whole, lambda step: len(step.stages) == 1 and not reads_across(step.stages[0]), BLOCKS)
    except InvalidWorkload:  # an intermediate beyond the limits of tensors
        return []
    return [(BLOCKS, steps)] if len(steps) > 1 else []


def _stage_steps(workload: Workload, has_class: Callable[[Workload], bool], form: str) -> tuple[Workload, ...]:
    """Return the stages in their order, as few steps as there are runs of stages that a class takes. ``form``: the name
    of the decomposition. Blocks of pixels have a step for each stage."""
    taken = {b.name for b in workload.inputs} | {s.name for s in workload.stages}
    taken |= {a.name for s in workload.stages for a in (*s.axes, *s.reduce_axes)}
    stages = [part for stage in workload.stages for part in _in_parts(workload, stage, has_class, taken, form)]
    steps: list[Workload] = []
    begin = 0
    while begin < len(stages):
        end, step = begin + 1, run_of(workload, stages, begin, begin + 1)
        for further in range(begin + 2, 0 if form == PIXEL_BLOCKS else len(stages) + 1):
            longer = run_of(workload, stages, begin, further)
            if has_class(longer):
                end, step = further, longer
        steps.append(step)
        begin = end
    return tuple(steps)


def _by_level(workload: Workload) -> Workload:
    """``workload`` with its stages in the order of how many others stand before them at least, so that those that may
    be computed together are next to each other."""
    level = {b.name: 0 for b in workload.inputs}
    for stage in workload.stages:
        level[stage.name] = 1 + max((level[load.buffer.name] for load in loads_of(stage.body)), default=0)
    return replace(workload, stages=tuple(sorted(workload.stages, key=lambda s: level[s.name])))


def _handed_bytes(steps: Sequence[Workload]) -> int:
    """Return how many bytes all steps but the last one store."""
    return sum(b.bytes for step in steps[:-1] for b in step.output_buffers)


def _as_written(workload: Workload) -> Workload | None:
    """``workload`` with each stage that does not reduce right behind what it reads, so that one step may compute both;
    None where all such stages are outputs."""
    if all(s.reducer is not None or s.name in workload.outputs for s in workload.stages):
        return None
    ordered: list[Stage] = []
    for stage in workload.stages:
        read = {load.buffer.name for load in loads_of(stage.body)}
        behind = [n for n, s in enumerate(ordered) if s.name in read]
        at = len(ordered) if stage.reducer is not None or not behind else behind[-1] + 1
        ordered.insert(at, stage)
    return replace(workload, stages=tuple(ordered))


def _with_gathers(workload: Workload) -> Workload | None:
    """``workload`` with a stage for what each load at a loaded index gives; None where there is none."""
    taken = {b.name for b in workload.inputs} | {s.name for s in workload.stages}
    gathers, stages = dict[Expr, Buffer](), list[Stage]()
    for stage in workload.stages:
        extents = {a.name: a for a in (*stage.axes, *stage.reduce_axes)}

        def gathered(load: Load, extents: Mapping[str, Axis] = extents) -> Load:
            if not any(loads_of(i) for i in load.indices):
                return load
            axes = [extents[v.name] for v in dict.fromkeys(e for e in walk(load) if isinstance(e, Var))]
            own = [Axis(f"{GATHERED}_{a.extent}_{n}", a.extent) for n, a in enumerate(axes)]
            key = substitute(load, {a.name: Var(b.name) for a, b in zip(axes, own, strict=True)})
            if key not in gathers:
                name = fresh_name(GATHERED, taken)
                taken.add(name)
                gathers[key] = Buffer(name, tuple(a.extent for a in axes), load.dtype)
                stages.append(with_own_axes(Stage(gathers[key], tuple(own), key), taken))
            return element_of(gathers[key], axes)

        stages.append(replace(stage, body=map_loads(stage.body, gathered)))
    return replace(workload, stages=tuple(stages)) if gathers else None


def _with_gathers_last(workload: Workload) -> Workload | None:
    """``workload`` with each sum at a loaded index, such as the product with the expert of a row, at all indices first;
    None where there is none."""
    taken = {b.name for b in workload.inputs} | {s.name for s in workload.stages}
    taken |= {a.name for s in workload.stages for a in (*s.axes, *s.reduce_axes)}
    stages: list[Stage] = []
    for stage in workload.stages:
        reduced = {a.name for a in stage.reduce_axes}
        found = {
            (i, extent)
            for load in loads_of(stage.body)
            for i, extent in zip(load.indices, load.buffer.shape, strict=True)
            if loads_of(i)
        }
        place, extent = next(iter(found)) if len(found) == 1 else (None, 0)
        if stage.reducer is not Reducer.SUM or place is None or reduced & free_variables(place):
            stages.append(stage)
            continue
        every = Axis(fresh_name("every", taken), extent)
        taken.add(every.name)
        at_all = partial(_at, place=place, every=Var(every.name))
        body = map_loads(stage.body, at_all)
        own = [a for a in stage.axes if a.name in free_variables(body)]
        axes = (*own[:-1], every, *own[-1:])
        name = fresh_name(f"{stage.name}_all", taken)
        taken.add(name)
        tensor = Buffer(name, tuple(a.extent for a in axes), stage.tensor.dtype)
        whole = Stage(tensor, axes, body, stage.reduce_axes, stage.reducer)
        stages.append(with_own_axes(whole, taken))
        chosen = Load(tensor, tuple(place if a is every else Var(a.name) for a in axes))
        stages.append(replace(stage, body=chosen, reduce_axes=(), reducer=None))
    return replace(workload, stages=tuple(stages)) if len(stages) > len(workload.stages) else None


def _at(load: Load, place: Expr, every: Expr) -> Load:
    """Return a load at ``every`` place where it is at ``place``."""
    return replace(load, indices=tuple(every if i == place else i for i in load.indices))


def _with_widened_inputs(workload: Workload) -> Workload | None:
    """``workload`` with a stage for each input of 8 bits that is read as float32, which has its elements as float16;
    None where there are none."""
    taken = {b.name for b in workload.inputs} | {s.name for s in workload.stages}
    taken |= {a.name for s in workload.stages for a in (*s.axes, *s.reduce_axes)}
    wide: dict[Buffer, Buffer] = {}
    stages: list[Stage] = []

    def widened(e: Expr) -> Expr:
        if not isinstance(e, Cast) or e.type != float32 or not isinstance(e.value, Load):
            return e
        given = e.value.buffer
        if given not in workload.inputs or given.dtype.bits != 8 or given.dtype.is_bool:
            return e
        if given not in wide:
            wide[given] = Buffer(fresh_name(f"{given.name}_wide", taken), given.shape, float16)
            taken.add(wide[given].name)
            axes = [Axis(f"wide_{n}", extent) for n, extent in enumerate(given.shape)]
            value = Cast(Load(given, tuple(Var(a.name) for a in axes)), float16)
            stages.append(with_own_axes(Stage(wide[given], tuple(axes), value), taken))
        return Cast(Load(wide[given], e.value.indices), float32)

    read = [replace(s, body=map_expr(s.body, widened)) for s in workload.stages]
    return replace(workload, stages=(*stages, *read)) if wide else None


def _in_parts(
    workload: Workload, stage: Stage, has_class: Callable[[Workload], bool], taken: set[str], form: str
) -> Sequence[Stage]:
    """Return the stage, or where it has no class a few that have and are the same together. Their tensors and axes have
    names that are not ``taken``. They are afterwards."""
    tensors = [s.tensor for s in workload.stages]

    def have_classes(parts: Sequence[Stage]) -> bool:
        made = [p.tensor for p in parts]
        try:
            return all(has_class(step_of(workload, [*tensors, *made], [p], (p.name,))) for p in parts)
        except InvalidWorkload:  # a tensor beyond the limits, or an index that is not seen to stay inside
            return False

    if have_classes([stage]):
        return [stage]
    blocks = LARGE_BLOCKS if form == BLOCKS else SMALL_BLOCKS
    parts_of = (_products(stage, taken, form), _pairs(stage, taken), reductions_in_parts(stage, taken, blocks))
    for *first, last in chain.from_iterable(parts_of):
        parts = [*(with_own_axes(s, taken) for s in first), last]
        if have_classes(parts):
            taken |= {p.name for p in parts}
            return parts
    return [stage]


def _products(stage: Stage, taken: set[str], form: str) -> Iterator[Sequence[Stage]]:
    """Yield a sum of products of two tensors with one element for each point of their axes: a factor that is anything
    else is computed first. Casts of such a tensor are left to the product, and then computed as well. With
    ``joined_axes`` the axes of the sum become one, which may need copies of tensors that are factors as they are. Where
    results lie in no order that a product has, they are copied there last."""
    found = contraction_of(stage)
    if found is None:
        return
    plain = next(filter(None, map(_plain_load, (found.left, found.right))), None)
    reduced = in_order_of_load(plain, stage.reduce_axes)
    joined = form == JOINED_AXES
    if joined and any(a.name not in free_variables(f) for a in reduced for f in (found.left, found.right)):
        return
    for casts in (True, False):
        computed = _ComputedFactors(stage, reduced, taken, form)
        factors = list[Expr]()
        left, right = cast_outside(found.left), cast_outside(found.right)
        for factor, other in ((left, right), (right, left)):
            cast = factor if casts and isinstance(factor, Cast) else None
            inner = factor if cast is None else cast.value
            if cast is not None and isinstance(other, Cast) and inner.dtype.bits == 8 and _is_narrow(other.value.dtype):
                inner = Cast(inner, other.value.dtype)  # holds it exactly
            if joined or _plain_load(inner) is not inner:
                inner = computed.load(inner)
            factors.append(inner if cast is None else replace(cast, value=inner))
        total = replace(stage, body=factors[0] * factors[1], reduce_axes=computed.reduced)
        if computed.stages:
            yield [*computed.stages, total]
        axes = {a.name: a for a in stage.axes}
        ordered = tuple(axes[name] for name in (*found.batch, *found.rows, *found.columns))
        if ordered != stage.axes:
            name = fresh_name("product", {*taken, *(s.name for s in computed.stages)})
            tensor = Buffer(name, tuple(a.extent for a in ordered), stage.tensor.dtype)
            copy = Stage(stage.tensor, stage.axes, element_of(tensor, ordered))
            yield [*computed.stages, replace(total, tensor=tensor, axes=ordered), copy]


def _pairs(stage: Stage, taken: set[str]) -> Iterator[Sequence[Stage]]:
    """Yield a reduction of a function of two expressions, neither of which has all axes, with those computed first that
    are more than elements of a tensor: casts of 16-bit floats whose distance is sought, for example. Others may be
    read on axes that both have, such as a weight of each term. Narrow elements are compared as wider ones, which hold
    them exactly."""
    if stage.reducer is None or stage.reducer.is_position or contraction_of(stage) is not None:
        return
    axes = {a.name for a in (*stage.axes, *stage.reduce_axes)}
    body = map_expr(stage.body, _compared_wide)
    read = {f: free_variables(f) for f in _partial_factors(body, axes)}
    pairs = [
        (f, g)
        for f, g in combinations(read, 2)
        if all(read[other] <= read[f] & read[g] for other in read if other not in (f, g))
    ]
    if len(pairs) != 1 or any(axes <= free_variables(load) for load in loads_of(body)):
        return
    (factors,) = pairs
    loads = [load for f in factors if (load := _plain_load(f)) is not None]
    computed = _ComputedFactors(stage, in_order_of_load(next(iter(loads), None), stage.reduce_axes), taken, STAGES)
    elements = {f: f if isinstance(f, Load) else computed.load(f) for f in factors}
    if computed.stages:
        yield [*computed.stages, replace(stage, body=_with_elements(body, elements))]


def _partial_factors(e: Expr, axes: set[str]) -> Iterator[Expr]:
    """Yield the largest parts of ``e`` that read tensors and lack some of the ``axes``."""
    if not loads_of(e):
        return
    if not axes <= free_variables(e):
        yield e
        return
    for child in e.children:
        yield from _partial_factors(child, axes)


def _with_elements(e: Expr, elements: Mapping[Expr, Expr]) -> Expr:
    if e in elements:
        return elements[e]
    return e if isinstance(e, Load) else rebuild(e, [_with_elements(child, elements) for child in e.children])


def _compared_wide(e: Expr) -> Expr:
    if not isinstance(e, Compare) or e.a.dtype.bits >= 32:
        return e
    wide = float32 if e.a.dtype.is_float else int32
    return Compare(e.op, Cast(e.a, wide), Cast(e.b, wide))


class _ComputedFactors:
    """Factors of a product that are computed first. With ``joined_axes`` all axes of the sum are one in them. Its end
    is filled with zeros, so that rows begin at multiples of 16 bytes."""

    def __init__(self, stage: Stage, reduced: Sequence[Axis], taken: set[str], form: str) -> None:
        self.stages: list[Stage] = []
        self.reduced = tuple(reduced)
        self._stage, self._terms = stage, tuple(reduced)
        self._taken, self._form = taken, form
        self._name = fresh_name("k", taken)
        taken.add(self._name)

    def load(self, factor: Expr) -> Load:
        """Return an element of the tensor of a factor."""
        if self._form == JOINED_AXES:
            factor = self._on_joined_axis(factor)
        kept, inner = self._stage.axes, largest(loads_of(factor))
        last = inner is not None and self._form != JOINED_AXES and self._is_of_results(inner.indices[-1])
        axes = (*self.reduced, *kept) if last else (*kept, *self.reduced)  # neighbours stay neighbours
        own = tuple(a for a in axes if a.name in free_variables(factor))
        name = fresh_name("factor", {*self._taken, *(s.name for s in self.stages)})
        tensor = Buffer(name, tuple(a.extent for a in own), factor.dtype)
        made = Stage(tensor, own, factor)
        for other in self.stages:
            if other.tensor.shape == tensor.shape and other.body == _on_axes_of(made, other):
                return element_of(other.tensor, own)
        self.stages.append(made)
        return element_of(tensor, own)

    def _is_of_results(self, i: Expr) -> bool:
        """Return whether an index runs along the results, not along the sum."""
        if self._form == PIXEL_BLOCKS:
            return free_variables(i).isdisjoint(a.name for a in self._terms)
        return i in [Var(a.name) for a in self._stage.axes]

    def _on_joined_axis(self, factor: Expr) -> Expr:
        count = prod(a.extent for a in self._terms)
        vector = _ROW_ALIGNMENT_BYTES // min(load.dtype.bytes for load in loads_of(self._stage.body))
        axis = Axis(self._name, -(-count // vector) * vector)
        self.reduced = (axis,)
        value = map_loads(substitute(factor, axis_indices(Var(axis.name), self._terms)), _within)
        zero = Const(float(0) if factor.dtype.is_float else 0, factor.dtype)
        return value if count == axis.extent else Select(Var(axis.name) < count, value, zero)


def _within(load: Load) -> Load:
    """Return a load that stays inside whatever its conditions are: they are hard to see in quotients and remainders."""
    places = zip(load.indices, load.buffer.shape, strict=True)
    return replace(load, indices=tuple(i if affine_form(i) is not None else within(i, extent) for i, extent in places))


def _is_narrow(dtype: DType) -> bool:
    return dtype.is_float and dtype.bits == 16


def _plain_load(factor: Expr) -> Load | None:
    """Return the load that a factor is, or is a cast of, if all of its indices are axes."""
    load = factor.value if isinstance(factor, Cast) else factor
    return load if isinstance(load, Load) and all(isinstance(i, Var) for i in load.indices) else None


def _on_axes_of(stage: Stage, other: Stage) -> Expr:
    """Return the body of a stage on the axes of another one of the same shape."""
    return substitute(stage.body, {a.name: Var(b.name) for a, b in zip(stage.axes, other.axes, strict=True)})


DECOMPOSED = Decomposer(
    decompositions,
    knob="decomposition",
    meaning="what the workload is decomposed into: `stages`, or a few together; with `joined_axes` the axes of a sum of"
    " products are one; with `gathered` what is read at loaded indices is copied first; with `widened` inputs "
    "of 8 bits are copied as float16 first; with `phased` positions that are read as quotients and remainders "
    "have axes for both; with `gathered_last` sums at loaded indices are computed at all indices first; "
    "with `doubled_scans` running sums that decay take a few rounds; "
    "with `reduced_products` there is a product for each direction in which it is reduced; "
    "with `single_products` sums of several products, such as those of complex numbers, have one each; with "
    "`split_k` behind these names long sums of products are those of slices; with `levels` stages that read no other "
    "come first, then those that read these; with `outer_first` reductions to few results begin with the last axes, "
    "and with `blocks` with a few neighbours; "
    "with `as_written` what several stages read is stored as the workload says it; "
    "with `softmax_chunks` the maximum and the sum of a row come from those of its chunks; `patches`, "
    "`channels_last` and their like change the layout of a convolution; with `padded` images are padded first",
    takes="workloads of static shapes that kernel classes take in several steps and none takes as a whole",
    generic=True,
)
PAIRWISE = replace(
    DECOMPOSED,
    steps=pairwise_decompositions,
    takes="pairwise reductions of casts or functions of elements, such as distances of 16-bit floats",
    generic=False,
)
CORRELATION = replace(
    DECOMPOSED,
    steps=correlation_decompositions,
    meaning="what the workload is decomposed into: with `pixel_blocks` products of blocks of pixels",
    takes="sums of products of pixels and displaced pixels, such as the cost volume of optical flow",
    generic=False,
    beside_classes=True,
)
CPU_DECOMPOSED = replace(DECOMPOSED, steps=cpu_decompositions)
