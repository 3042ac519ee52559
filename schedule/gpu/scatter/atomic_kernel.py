"""Writes the kernel of a scatter whose terms are reduced in memory as they come.

    totals = identity                                                       # a launch of its own
    for terms of the thread:    totals[key(term)] op= term                  # atomic, in any order
    Y[key] = epilogue(totals[key])                                          # a launch of its own

Where ``copies`` is not 0, a block reduces into so many copies of the totals in shared memory, which its warps share,
and then all copies into those in global memory. Blocks may have a part of the elements each, and then leave terms of
others to those that load the same terms. Where the totals are what is stored, they are the output, and there is
no last launch.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import zip_longest
from math import prod

from ....core.dtypes import INDEX
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import WARP_LANES, Binary, Cast, Expr, Load, index, minimum
from ....ir.gpu.atomic import AtomicReduce
from ....ir.rewrite import free_variables, loads_of
from ....ir.stmt import HardwareAxis, Kernel
from ....te.functions import all_of, cast, negated, not_equal, within
from ....te.workload import Axis
from ...loop_nest.nest import KERNEL_NAME
from ...problems.scatter import ScatterProblem
from ...space.columns import Size
from ...tile.delinearize import axis_indices
from ...tile.names import FreshNameWriter
from ...tile.stage_body import scalar_at
from ..l2_prefetch import L2Prefetch
from .in_place import InPlaceReduction
from .term_loads import TermLoads

POINT_THREADS = 256
"""Threads of a block that sets totals, or that computes outputs from them."""
POINT_BLOCKS = 1024
"""So many such blocks at most: a device starts them one after the other."""
VECTOR_BYTES = 16
"""Totals are set so many bytes at a time."""
PREFETCHED_BYTES, MOST_PREFETCHED_BYTES = 16 << 10, 16 << 20
"""Bytes of a tensor of terms that such a block prefetches, at most, and those of all tensors that are prefetched."""


@dataclass(frozen=True, slots=True)
class AtomicScatterSizes:
    """What a setting of the knobs implies; columns for a space, plain ints for one setting.

    ``threads``, ``vector_width``, ``unroll``, ``ctas_per_sm``, ``copies`` and ``key_parts`` are the knobs. ``keys``:
    elements along the keys that a block has. ``parts``: into how many parts the terms of a batch are cut. ``blocks``:
    blocks of the launch that reduces. ``trips``: how often a thread loads ``unroll`` vectors. ``registers``: registers
    of a thread, roughly. ``shared_bytes``: shared memory of a block. ``resident``: how many blocks a multiprocessor
    runs at once.
    """

    threads: Size
    vector_width: Size
    unroll: Size
    ctas_per_sm: Size
    copies: Size
    key_parts: Size
    keys: Size
    parts: Size
    blocks: Size
    trips: Size
    registers: Size
    shared_bytes: Size
    resident: Size


def atomic_scatter_kernel(
    problem: ScatterProblem, how: Sequence[InPlaceReduction], sizes: AtomicScatterSizes
) -> Kernel:
    """Return the kernel of one setting. ``how``: how the terms of each scatter are reduced."""
    return _AtomicKernelWriter(problem, how, sizes).kernel()


def totals_are_output(problem: ScatterProblem, how: Sequence[InPlaceReduction]) -> bool:
    """Return whether the one output is the totals themselves."""
    one = len(how) == len(problem.outputs) == 1
    return one and how[0].is_result and isinstance(problem.outputs[0].body, Load)


def prefetched_inputs(problem: ScatterProblem) -> tuple[Buffer, ...]:
    """Return the inputs with something for each term, where they fit L2 beside the totals."""
    terms = {a.name for a in problem.scatter.stage.reduce_axes}
    found = dict.fromkeys(
        load.buffer for load in loads_of_terms(problem) if terms <= free_variables(load) and len(loads_of(load)) == 1
    )
    return tuple(found) if sum(b.bytes for b in found) <= MOST_PREFETCHED_BYTES else ()


def loads_of_terms(problem: ScatterProblem) -> tuple[Load, ...]:
    """Return what is loaded for the terms of all scatters and for their elements, each once."""
    read = (*problem.scatter.places, *(p.scatter.term for p in problem.each))
    return tuple(dict.fromkeys(load for e in read for load in loads_of(e)))


@dataclass(frozen=True)
class _Totals:
    """The totals of one scatter, ``[total, *axes of the stage]``, or ``[*axes of the stage]`` where they are the
    output."""

    w: FreshNameWriter
    p: ScatterProblem
    how: InPlaceReduction
    s: AtomicScatterSizes
    buffer: Buffer

    @property
    def _axes(self) -> tuple[Axis, ...]:
        return self.p.scatter.stage.axes

    @property
    def width(self) -> int:
        """How many totals are set at once."""
        width = VECTOR_BYTES // self.how.dtype.bytes
        return width if self.buffer.elements % width == 0 else 1

    def set(self, vector: Expr) -> None:
        """Set some totals, given the number of their vector."""
        flat = replace(self.buffer, shape=(self.buffer.elements,))
        with self.w.vectorized("lane", self.width) as lane:
            self.w.store(flat, (vector * self.width + lane,), self.how.identity)

    def result(self, here: Mapping[str, Expr]) -> Buffer:
        """Return the reduced terms of an element, in registers."""
        result = self.w.allocate("result", (), self.p.scatter.stage.tensor.dtype, MemoryScope.REGISTER)
        totals = [Load(self.buffer, self._at(index(n), here)) for n in range(self.how.count)]
        self.w.store(result, (), self.how.result(totals))
        return result

    def new_copies(self, thread: Expr) -> Buffer:
        """Return copies of the totals of a block's elements in shared memory, without any term yet."""
        w, s = self.w, self.s
        count = len(self.how.copied) * s.keys * self.p.columns
        copies = w.allocate("copies", (s.copies, count), self.how.copy_dtype, MemoryScope.SHARED)
        with w.shared_out("place", count, s.threads, thread) as place, w.unrolled("copy", s.copies) as copy:
            w.store(copies, (copy, minimum(place, index(count - 1))), cast(self.how.identity, copies.dtype))
        return copies

    def reduce_term(
        self, value: Expr, here: Mapping[str, Expr], key: Expr, copies: Buffer | None, thread: Expr
    ) -> None:
        """Reduce the totals, or a copy of them, with a term. ``key``: the number of its element among the block's."""
        column: Expr = index(0)
        for axis in self.p.scatter.rest:
            column = column * axis.extent + here[axis.name]

        def reduce(number: Expr, term: Expr) -> None:
            copied, w = self.how.copied, self.w
            if copies is None:
                self._reduce_total(self._at(number, here), term)
                return
            place = ((number - copied.start) * self.s.keys + key) * self.p.columns + column
            inside = all_of(number >= copied.start, number < copied.stop)
            with w.when(inside):
                copy = thread // WARP_LANES % self.s.copies
                w.emit(AtomicReduce(self.how.op, copies, (copy, within(place, copies.shape[1])), term))
            with w.when(negated(inside)):
                self._reduce_total(self._at(number, here), term)

        self.how.reduce(self.w, value, reduce)

    def join_copies(self, copies: Buffer, batch: Expr, first_key: Expr, thread: Expr) -> None:
        """Reduce the totals with those of the copies that any term has changed."""
        w, s, p, scatter = self.w, self.s, self.p, self.p.scatter
        total = w.allocate("total", (), copies.dtype, MemoryScope.REGISTER)
        with w.shared_out("place", copies.shape[1], s.threads, thread) as place:
            here = minimum(place, index(copies.shape[1] - 1))
            w.store(total, (), Load(copies, (index(0), here)))
            for other in range(1, s.copies):
                w.store(total, (), Binary(self.how.op, Load(total, ()), Load(copies, (index(other), here))))
            key, column = first_key + here // p.columns % s.keys, here % p.columns
            exists = key < p.keys if s.keys * s.key_parts > p.keys else None
            of = {
                **axis_indices(batch, scatter.batch),
                **axis_indices(within(key, p.keys), scatter.keys),
                **axis_indices(column, scatter.rest),
            }
            number = here // (p.columns * s.keys) + self.how.copied.start
            with w.when(exists, not_equal(Load(total, ()), cast(self.how.identity, copies.dtype))):
                self._reduce_total(self._at(number, of), Load(total, ()))

    def _reduce_total(self, at: tuple[Expr, ...], value: Expr) -> None:
        self.w.emit(AtomicReduce(self.how.op, self.buffer, at, cast(value, self.how.dtype)))

    def _at(self, number: Expr, here: Mapping[str, Expr]) -> tuple[Expr, ...]:
        """Return the indices of a total of the element at some axes of the stage."""
        at = tuple(here[a.name] for a in self._axes)
        return at if len(self.buffer.shape) == len(at) else (number, *at)


class _AtomicKernelWriter:
    def __init__(self, problem: ScatterProblem, how: Sequence[InPlaceReduction], sizes: AtomicScatterSizes) -> None:
        self.p, self.s, self.w = problem, sizes, FreshNameWriter(problem.names)
        self.axes = problem.scatter.stage.axes
        self.is_output = totals_are_output(problem, how)
        self.each = [
            _Totals(self.w, p, h, sizes, problem.outputs[0].tensor if self.is_output else self._new_totals(h))
            for p, h in zip(problem.each, how, strict=True)
        ]

    def _new_totals(self, how: InPlaceReduction) -> Buffer:
        return Buffer(self.w.fresh("totals"), (how.count, *(a.extent for a in self.axes)), how.dtype)

    def kernel(self) -> Kernel:
        self._set_totals()
        self._reduce()
        if not self.is_output:
            self._write_outputs()
        outputs = tuple(dict.fromkeys(self.p.workload.output_buffers))
        workspace = () if self.is_output else tuple(t.buffer for t in self.each)
        return Kernel(KERNEL_NAME, self.p.workload.inputs, outputs, workspace, self.w.finish())

    def _set_totals(self) -> None:
        """Terms come into L2 meanwhile."""
        tensors = prefetched_inputs(self.p)
        least = max((t.bytes // PREFETCHED_BYTES for t in tensors), default=0)
        counts = [t.buffer.elements // t.width for t in self.each]
        with self._point_launch("clear_totals", max(counts), least) as (block, thread, blocks):
            prefetch = L2Prefetch(self.w, (thread, POINT_THREADS), (block, blocks), blocks)
            for tensor in tensors:
                prefetch.all("prefetched", tensor)
            for totals, count in zip(self.each, counts, strict=True):
                with self._points(count, block, thread, blocks) as vector:
                    totals.set(vector)

    @contextmanager
    def _point_launch(self, name: str, points: int, least_blocks: int = 0) -> Iterator[tuple[Expr, Expr, int]]:
        """A launch for so many points; give block and thread, and how many blocks there are."""
        blocks = min(max(-(-points // POINT_THREADS), least_blocks), POINT_BLOCKS)
        axes = [("block", blocks, HardwareAxis.GRID_X), ("thread", POINT_THREADS, HardwareAxis.THREAD)]
        with self.w.launch(name, axes) as (block, thread):
            yield block, thread, blocks

    @contextmanager
    def _points(self, points: int, block: Expr, thread: Expr, blocks: int) -> Iterator[Expr]:
        """What the threads of a launch share; give the number of each."""
        number = block * POINT_THREADS + thread
        with self.w.shared_out("point", points, blocks * POINT_THREADS, number) as point:
            yield minimum(point, index(points - 1))

    def _reduce(self) -> None:
        w, s, p = self.w, self.s, self.p
        axes = [("block", s.blocks, HardwareAxis.GRID_X), ("thread", s.threads, HardwareAxis.THREAD)]
        loads = TermLoads(w, p, s)
        with w.launch(KERNEL_NAME, axes, min_blocks=s.ctas_per_sm) as (block, thread):
            batch, part = block // (s.parts * s.key_parts), block // s.key_parts % s.parts
            first_key = block % s.key_parts * s.keys
            copies = [t.new_copies(thread) for t in self.each] if s.copies else []
            if copies:
                w.barrier()
            with w.loop("trip", s.trips) as trip:
                keys, values = loads.load(batch, part, trip, thread)
                with w.unrolled("u", s.unroll) as u, w.unrolled("lane", s.vector_width) as lane:
                    at = loads.at_lane(loads.at(batch, part, trip, thread, u), lane)
                    number = Cast(Load(keys, (u, lane)), INDEX)
                    with w.when(number >= first_key, number < first_key + s.keys if s.key_parts > 1 else None):
                        key = loads.inside(number)
                        here = {**at, **axis_indices(key, p.scatter.keys)}
                        for totals, own, copy in zip_longest(self.each, values, copies):
                            totals.reduce_term(Load(own, (u, lane)), here, key - first_key, copy, thread)
            if copies:
                w.barrier()
            for totals, copy in zip(self.each, copies, strict=False):
                totals.join_copies(copy, batch, first_key, thread)

    def _write_outputs(self) -> None:
        points = prod(a.extent for a in self.axes)
        with self._point_launch("write_outputs", points) as at, self._points(points, *at) as point:
            here = axis_indices(point, self.axes)
            results = [Load(totals.result(here), ()) for totals in self.each]
            for output in self.p.outputs:
                value = scalar_at(self.p.body_of(output, *results), here)
                self.w.store(output.tensor, tuple(here[a.name] for a in self.axes), value)
