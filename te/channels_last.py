"""Convolutions whose channels come first, as a change of layout and a convolution whose channels come last.

    Y[n, o, y, x] = f(sum over c, r, s of X[n, c, y + r, x + s] * W[o, c, r, s])

    ->  X'[n, h, w, c] = X[n, c, h, w]        W'[o, r, s, c] = W[o, c, r, s]
        Y'[n, y, x, o] = f(sum over c, r, s of X'[n, y + r, x + s, c] * W'[o, r, s, c])
        Y[n, o, y, x] = Y'[n, y, x, o]

Matrix units multiply rows of channels. Each line is a *step*, a workload of its own, and together they compute what the
workload does. There are up to four decompositions:

    patches             what windows see is copied, where that is no more than the images: windows that do not overlap.
                        What is left is a product of matrices, whose results lie as they should. Patches are
                        [n, y, x, c, r, s] where windows see some bytes side by side, else [n, c, r, s, y, x]
    channels_last_in    images and filters are copied, and the convolution stores its results with channels first: those
                        of 32 bits, floats of 16 bits whose rows have whole vectors of 16 bytes, and phases
    channels_last       results are copied too, and so is what is added to them with channels first (a residual)
    channels_last_sums  the sums are stored with channels last, and what follows them is done where they are copied
    pixels_summed       of a gradient towards filters, which sums over pixels: both factors are copied with their own
                        channels last (in the others, its images become channels, and channels images)

Convolutions are known by how axes stand to each other. Names play no part, and there may be any number of dimensions,
strides, dilations, paddings and groups. A transposed convolution is one, too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from ..core.errors import InvalidWorkload
from ..ir.buffer import Buffer
from ..ir.expr import Cast, Const, Expr, Load, Select, Var
from ..ir.rewrite import free_variables, fresh_name, loads_of, map_expr, map_loads
from .contraction import contraction_of
from .inline import inline_stages
from .phases import with_phases
from .steps import step_of
from .workload import Axis, Stage, Workload

PIXELS_OF_A_VECTOR = 8
"""So many floats of 16 bits are stored at once."""

RUN_BYTES = 8
"""Windows that see so many bytes side by side are copied window by window. Others, such as those of one place, are
copied along the rows of the images."""

Decomposition = tuple[str, tuple[Workload, ...]]
"""A name, and the steps."""


def channels_last_steps(workload: Workload) -> list[Decomposition]:
    """Return the decompositions of a convolution with channels first, in the order above, at most four. The steps of
    each run one after the other: the last one has the outputs of the workload, and the others have tensors that later
    ones read. There are none where the workload is no such convolution, or a depthwise one."""
    if workload.dynamic or workload.skews:
        return []
    phased = with_phases(workload)
    inlined = inline_stages(workload) if phased is None else phased
    total, *rest = inlined.stages
    convolution = None if any(s.reducer is not None for s in rest) else _convolution_of(total)
    if convolution is None:
        return []
    found = list[Decomposition]()
    for name, write in _WRITERS.items():
        steps = _Steps(inlined, dict(found), phased is not None)
        try:
            if write(steps, convolution):
                found.append((name, tuple(steps.done)))
        except InvalidWorkload:  # a tensor beyond the limits, or an index whose bounds are not known any more
            continue
    return found


@dataclass(frozen=True, slots=True)
class _GuardedFactor:
    """A factor of the sum. ``guarded`` is it without a cast: ``load``, perhaps with zeros around it."""

    guarded: Expr
    load: Load

    @classmethod
    def of(cls, body: Expr) -> "_GuardedFactor | None":
        guarded = inner = body.value if isinstance(body, Cast) else body
        while isinstance(inner, Cast | Select):
            if isinstance(inner, Select):
                otherwise = inner.otherwise.value if isinstance(inner.otherwise, Cast) else inner.otherwise
                if not isinstance(otherwise, Const) or otherwise.value != 0:
                    return None
            inner = inner.then if isinstance(inner, Select) else inner.value
        return cls(guarded, inner) if isinstance(inner, Load) else None

    def dims(self, names: Sequence[str]) -> list[int]:
        """Return the dimensions whose index is one of ``names`` alone, in the order of ``names``."""
        places = {i.name: d for d, i in enumerate(self.load.indices) if isinstance(i, Var)}
        return [places[name] for name in names if name in places]


@dataclass(frozen=True, slots=True)
class _Convolution:
    """A sum over ``channel`` and over what else ``image`` and ``filters`` share. ``groups``: axes that are a dimension
    of both factors. ``filter_axes``: the axes of the sums that stand ahead of the pixels, and belong behind them.
    ``depth``: how many channels are added up. ``pixels``: the axes of the sums over the pixels of an image.
    ``numbers``: the axis over images, where these stand side by side: in a gradient towards filters that of their
    channels, while images of the batch are its channels. ``phases``: whether there are further axes of the filters (of
    a transposed convolution)."""

    total: Stage
    image: _GuardedFactor
    filters: _GuardedFactor
    channel: str
    groups: tuple[str, ...]
    filter_axes: tuple[str, ...]
    depth: int
    pixels: tuple[Axis, ...]
    numbers: tuple[str, ...]
    phases: bool

    @property
    def order(self) -> tuple[int, ...]:
        """The dimensions of the sums, with channels last."""
        first, last = (
            [d for d, a in enumerate(self.total.axes) if a.name in names] for names in (self.numbers, self.filter_axes)
        )
        return _with_last(len(self.total.axes), last, first)

    @property
    def image_order(self) -> tuple[int, ...]:
        """The dimensions of the images, with channels last."""
        last, first = self.image.dims((*self.groups, self.channel)), self.image.dims(self.numbers)
        return _with_last(len(self.image.load.indices), last, first)


def _convolution_of(total: Stage) -> _Convolution | None:
    """Return a sum as a convolution whose images have their channels ahead of their pixels; None for any other sum."""
    found = contraction_of(total)
    if found is None:
        return None
    sides = [(found.left, found.right, found.columns), (found.right, found.left, found.rows)]
    if total.axes[0].name in found.columns:  # factors of a transposed convolution look alike, but for their places
        sides.reverse()
    for one, other, own in sides:
        image, filters = _GuardedFactor.of(one), _GuardedFactor.of(other)
        if image is None or filters is None:
            continue
        both = [name for name in found.shared if image.dims([name]) and filters.dims([name])]
        if not both:
            continue
        channel = min(both, key=lambda name: image.dims([name]))
        place = image.dims([channel])[0]
        behind = image.load.indices[place + 1 :]
        numbers = () if place else tuple(i.name for i in behind[-1:] if isinstance(i, Var))
        behind = behind[: len(behind) - len(numbers)]
        pixels = tuple(a for a in total.axes if any(a.name in free_variables(i) for i in behind))
        if not pixels or all(isinstance(i, Var) for i in behind):
            continue  # channels are last, or these are rows of a matrix
        groups = tuple(name for name in found.batch if image.dims([name]) and filters.dims([name]))
        depth = next(a.extent for a in total.reduce_axes if a.name == channel)
        if groups and depth == 1:
            continue  # a depthwise convolution
        before = total.axes[: total.axes.index(pixels[0])]
        ahead = tuple(a.name for a in before if a.name in (*own, *groups))
        phases = bool(set(own) - set(ahead))
        return _Convolution(total, image, filters, channel, groups, ahead, depth, pixels, numbers, phases)
    return None


class _Steps:
    """The steps of a decomposition, as they are written. ``done``: those that there are. ``others``: the
    decompositions before it, by name. ``phased``: whether pixels are read from the sums by quotient and remainder."""

    def __init__(self, whole: Workload, others: Mapping[str, tuple[Workload, ...]], phased: bool) -> None:
        self.whole, self.others, self.phased, self.done = whole, others, phased, list[Workload]()
        self._made = list[Buffer]()
        self._copies = dict[tuple[str, tuple[int, ...]], Buffer]()
        self._taken = {b.name for b in whole.inputs}
        self._taken |= {n for s in whole.stages for n in (s.name, *(a.name for a in (*s.axes, *s.reduce_axes)))}

    @property
    def rest(self) -> tuple[Stage, ...]:
        """What follows the sums."""
        return self.whole.stages[1:]

    def fresh(self, name: str) -> str:
        """Return a name that nothing else has."""
        new = fresh_name(name, self._taken)
        self._taken.add(new)
        return new

    def add(self, stages: Sequence[Stage], outputs: Sequence[str]) -> None:
        """Add a step. Raises InvalidWorkload where it is none."""
        self.done.append(step_of(self.whole, self._made, stages, tuple(outputs)))
        self._made += [s.tensor for s in stages if s.name in outputs]

    def axes_read(self, load: Load) -> list[str]:
        """Return the axes that are an index of ``load``, or two where pixels are read by quotient and remainder."""
        names = [i.name for i in load.indices if isinstance(i, Var)]
        parts = {name for i in load.indices for name in free_variables(i)} - {*names} if self.phased else set()
        return sorted([*names, *parts])

    def copied(self, load: Load, order: tuple[int, ...]) -> Load:
        """Return ``load`` from a copy whose dimensions are in another order, which a step writes, if none has."""
        tensor, key = load.buffer, (load.buffer.name, order)
        if key not in self._copies:
            axes = [Axis(self.fresh(f"d{d}"), extent) for d, extent in enumerate(tensor.shape)]
            name = self.fresh(f"{tensor.name}_channels_last")
            copy = Buffer(name, tuple(tensor.shape[d] for d in order), tensor.dtype)
            body = Load(tensor, tuple(Var(a.name) for a in axes))
            self.add([Stage(copy, tuple(axes[d] for d in order), body)], [name])
            self._copies[key] = copy
        return _permuted(load, self._copies[key], order)

    def sums(self, c: _Convolution) -> Stage:
        """Return the sums of images and filters with channels last, as which they are copied."""
        image, filters = c.image.load, c.filters.load
        new = {image: self.copied(image, c.image_order)}
        order = _with_last(len(filters.indices), c.filters.dims((c.channel,)))
        if _moves(filters.buffer, order):
            new[filters] = self.copied(filters, order)
        return replace(c.total, body=map_loads(c.total.body, lambda load: new.get(load, load)))

    def with_order(self, stage: Stage, order: Sequence[int]) -> Stage:
        """Return a stage with its dimensions in another order, under another name."""
        name = self.fresh(f"{stage.name}_channels_last")
        tensor = Buffer(name, tuple(stage.tensor.shape[d] for d in order), stage.tensor.dtype)
        return replace(stage, tensor=tensor, axes=tuple(stage.axes[d] for d in order))

    def back(self, stage: Stage, tensor: Buffer, order: Sequence[int]) -> Stage:
        """Return the stage that copies to the tensor of ``stage`` what has its dimensions in another order."""
        axes = tuple(replace(a, name=self.fresh(a.name)) for a in stage.axes)
        whole = Load(stage.tensor, tuple(Var(a.name) for a in axes))
        return Stage(stage.tensor, axes, _permuted(whole, tensor, order))


def _with_last(rank: int, last: Sequence[int], first: Sequence[int] = ()) -> tuple[int, ...]:
    """Return ``rank`` dimensions with some of them last, and perhaps some of them first."""
    return (*first, *(d for d in range(rank) if d not in (*first, *last)), *last)


def _moves(tensor: Buffer, order: Sequence[int]) -> bool:
    """Return whether elements lie otherwise with the dimensions in another order."""
    longer = [d for d in order if tensor.shape[d] > 1]
    return longer != sorted(longer)


def _permuted(load: Load, tensor: Buffer, order: Sequence[int]) -> Load:
    """Return ``load`` from a tensor that has its dimensions in another order."""
    return Load(tensor, tuple(load.indices[d] for d in order))


def _write_patches(steps: _Steps, c: _Convolution) -> bool:
    axes = {a.name: a for a in (*c.total.axes, *c.total.reduce_axes)}
    read, summed, pixels = free_variables(c.image.guarded), {a.name for a in c.total.reduce_axes}, set(c.pixels)
    inner = tuple(i.name for i in c.filters.load.indices if isinstance(i, Var) and i.name in read & summed)
    outer = tuple(n for n, a in axes.items() if n in read - summed and n not in c.groups and a not in pixels)
    if set(inner) != summed:
        return False
    seen, places = (*c.groups, *inner), tuple(a.name for a in c.pixels)
    run = prod(axes[name].extent for name in free_variables(c.image.load.indices[-1]) & summed)
    in_runs = run * c.image.load.dtype.bytes >= RUN_BYTES
    order = [axes[name] for name in (*outer, *((*places, *seen) if in_runs else (*seen, *places)))]
    if prod(a.extent for a in order) > c.image.load.buffer.elements:
        return False
    name = steps.fresh(f"{c.image.load.buffer.name}_patches")
    patches = Buffer(name, tuple(a.extent for a in order), c.image.guarded.dtype)
    steps.add([Stage(patches, tuple(order), c.image.guarded)], [name])
    value = Load(patches, tuple(Var(a.name) for a in order))
    body = map_expr(c.total.body, lambda e: value if e == c.image.guarded else e)
    steps.add([replace(c.total, body=body), *steps.rest], steps.whole.outputs)
    return True


def _write_channels_last_in(steps: _Steps, c: _Convolution) -> bool:
    vectors = c.pixels[-1].extent % PIXELS_OF_A_VECTOR == 0
    types = [b.dtype for b in steps.whole.output_buffers]
    stored = [t.bits == 32 or (t.bits == 16 and t.is_float and vectors) for t in types]
    single = c.depth == 1  # filters of one channel look like images whose rows are channels
    places = prod(a.extent for a in c.total.reduce_axes) // c.depth  # phases of one place look like filters
    if "patches" in steps.others or (c.filter_axes and (single or not (places > 1 if c.phases else all(stored)))):
        return False
    steps.add([steps.sums(c), *steps.rest], steps.whole.outputs)
    return True


@dataclass(frozen=True, slots=True)
class _MovedStage:
    """A stage that has become ``tensor``, its dimensions in another ``order``. The last ``count`` are filters."""

    tensor: Buffer
    order: tuple[int, ...]
    count: int

    def filters(self, load: Load) -> set[str]:
        """Return the axes along the filters where the stage is read."""
        last = self.order[len(self.order) - self.count :]
        return {i.name for d in last if isinstance(i := load.indices[d], Var)}


def _write_channels_last(steps: _Steps, c: _Convolution) -> bool:
    if not c.filter_axes and not c.numbers:
        return False
    stages = [steps.with_order(steps.sums(c), c.order)]
    moved = {c.total.name: _MovedStage(stages[0].tensor, c.order, len(c.filter_axes))}
    for stage in steps.rest:
        read = next((load for load in loads_of(stage.body) if load.buffer.name in moved), None)
        own = [a.name for a in stage.axes]
        if read is None or sorted(own) != steps.axes_read(read):
            return False  # no pointwise function of the sums
        filters = moved[read.buffer.name].filters(read)
        last = [d for d, name in enumerate(own) if name in filters]

        def replaced(load: Load, filters: set[str] = filters) -> Load:
            if (at := moved.get(load.buffer.name)) is not None:
                return _permuted(load, at.tensor, at.order)
            of_filters = [d for d, i in enumerate(load.indices) if free_variables(i) & filters]
            order = _with_last(len(load.indices), of_filters)
            return steps.copied(load, order) if _moves(load.buffer, order) else load

        body = map_loads(stage.body, replaced)
        as_read = [i.name for d in moved[read.buffer.name].order if isinstance(i := read.indices[d], Var)]
        order = tuple(map(own.index, as_read)) if len(as_read) == len(own) else _with_last(len(own), last)
        stages.append(steps.with_order(replace(stage, body=body), order))
        moved[stage.name] = _MovedStage(stages[-1].tensor, order, len(last))
    outputs = [steps.whole.stage(name) for name in steps.whole.outputs]
    steps.add(stages, [moved[s.name].tensor.name for s in outputs])
    steps.add([steps.back(s, moved[s.name].tensor, moved[s.name].order) for s in outputs], steps.whole.outputs)
    return True


def _write_channels_last_sums(steps: _Steps, c: _Convolution) -> bool:
    if (not c.filter_axes and not c.numbers) or not steps.rest:
        return False
    sums = steps.with_order(steps.sums(c), c.order)
    steps.add([sums], [sums.name])
    if len(steps.others.get("channels_last", ())) == len(steps.done) + 1:
        return False  # nothing but the results is copied there

    def replaced(load: Load) -> Load:
        return _permuted(load, sums.tensor, c.order) if load.buffer.name == c.total.name else load

    last = [replace(s, body=map_loads(s.body, replaced)) for s in steps.rest]
    if c.total.name in steps.whole.outputs:
        last.insert(0, steps.back(c.total, sums.tensor, c.order))
    steps.add(last, steps.whole.outputs)
    return True


def _write_pixels_summed(steps: _Steps, c: _Convolution) -> bool:
    summed, new = {a.name for a in c.total.reduce_axes}, dict[Load, Load]()
    for load in (c.image.load, c.filters.load):
        own = [d for d, i in enumerate(load.indices) if isinstance(i, Var) and i.name not in summed]
        if len(own) != 1 or own[0] == len(load.indices) - 1 or c.image.dims((c.channel,)) != [0]:
            return False
        new[load] = steps.copied(load, _with_last(len(load.indices), own))
    sums = replace(c.total, body=map_loads(c.total.body, lambda load: new.get(load, load)))
    steps.add([sums, *steps.rest], steps.whole.outputs)
    return True


_WRITERS: dict[str, Callable[[_Steps, _Convolution], bool]] = {
    "patches": _write_patches,
    "channels_last_in": _write_channels_last_in,
    "channels_last": _write_channels_last,
    "channels_last_sums": _write_channels_last_sums,
    "pixels_summed": _write_pixels_summed,
}
"""Each adds the steps of a decomposition, and returns whether it makes sense."""
