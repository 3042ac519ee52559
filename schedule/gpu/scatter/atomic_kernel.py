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

from ....core.dtypes import INDEX
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import WARP_LANES, Binary, Cast, Expr, Load, index, minimum
from ....ir.gpu.atomic import AtomicReduce
from ....ir.rewrite import free_variables, loads_of
from ....ir.stmt import HardwareAxis, Kernel
from ....te.functions import all_of, cast, negated, not_equal, within
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


def atomic_scatter_kernel(problem: ScatterProblem, how: InPlaceReduction, sizes: AtomicScatterSizes) -> Kernel:
    """Return the kernel of one setting."""
    return _AtomicKernelWriter(problem, how, sizes).kernel()


def totals_are_output(problem: ScatterProblem, how: InPlaceReduction) -> bool:
    """Return whether the one output is the totals themselves."""
    return how.is_result and len(problem.outputs) == 1 and isinstance(problem.outputs[0].body, Load)


def prefetched_inputs(problem: ScatterProblem) -> tuple[Buffer, ...]:
    """Return the inputs with something for each term, where they fit L2 beside the totals."""
    scatter = problem.scatter
    terms = {a.name for a in scatter.stage.reduce_axes}
    loads = [load for e in (scatter.term, *scatter.places) for load in loads_of(e)]
    found = dict.fromkeys(load.buffer for load in loads if terms <= free_variables(load) and len(loads_of(load)) == 1)
    return tuple(found) if sum(b.bytes for b in found) <= MOST_PREFETCHED_BYTES else ()


class _AtomicKernelWriter:
    def __init__(self, problem: ScatterProblem, how: InPlaceReduction, sizes: AtomicScatterSizes) -> None:
        self.p, self.how, self.s = problem, how, sizes
        self.w = FreshNameWriter(problem.names)
        self.axes = problem.scatter.stage.axes
        self.is_output = totals_are_output(problem, how)
        if self.is_output:
            self.totals = problem.outputs[0].tensor
        else:
            self.totals = Buffer(self.w.fresh("totals"), (how.count, *(a.extent for a in self.axes)), how.dtype)

    def kernel(self) -> Kernel:
        self._clear()
        self._reduce()
        if not self.is_output:
            self._write_outputs()
        outputs = tuple(dict.fromkeys(self.p.workload.output_buffers))
        workspace = () if self.is_output else (self.totals,)
        return Kernel(KERNEL_NAME, self.p.workload.inputs, outputs, workspace, self.w.finish())

    def _clear(self) -> None:
        """Set the totals, while the terms come into L2."""
        w, count = self.w, self.totals.elements
        width = VECTOR_BYTES // self.how.dtype.bytes
        width = width if count % width == 0 else 1
        flat, tensors = replace(self.totals, shape=(count,)), prefetched_inputs(self.p)
        least = max((t.bytes // PREFETCHED_BYTES for t in tensors), default=0)
        with self._each("clear_totals", count // width, least, tensors) as number, w.vectorized("lane", width) as lane:
            w.store(flat, (number * width + lane,), self.how.identity)

    @contextmanager
    def _each(self, name: str, items: int, least_blocks: int = 0, tensors: Sequence[Buffer] = ()) -> Iterator[Expr]:
        """A launch whose threads do something for each of so many items; give its number. It begins by prefetching
        ``tensors``."""
        blocks = min(max(-(-items // POINT_THREADS), least_blocks), POINT_BLOCKS)
        axes = [("block", blocks, HardwareAxis.GRID_X), ("thread", POINT_THREADS, HardwareAxis.THREAD)]
        with self.w.launch(name, axes) as (block, thread):
            prefetch = L2Prefetch(self.w, (thread, POINT_THREADS), (block, blocks), blocks)
            for tensor in tensors:
                prefetch.all("prefetched", tensor)
            number = block * POINT_THREADS + thread
            with self.w.shared_out("item", items, blocks * POINT_THREADS, number) as item:
                yield minimum(item, index(items - 1))

    def _at(self, number: Expr, here: Mapping[str, Expr]) -> tuple[Expr, ...]:
        """Return the indices of a total of the element at some axes of the stage."""
        at = tuple(here[a.name] for a in self.axes)
        return at if self.is_output else (number, *at)

    def _reduce(self) -> None:
        w, s, p = self.w, self.s, self.p
        axes = [("block", s.blocks, HardwareAxis.GRID_X), ("thread", s.threads, HardwareAxis.THREAD)]
        loads = TermLoads(w, p, s, p.accumulation.accumulator_dtype)
        with w.launch(KERNEL_NAME, axes, min_blocks=s.ctas_per_sm) as (block, thread):
            batch, part = block // (s.parts * s.key_parts), block // s.key_parts % s.parts
            first_key = block % s.key_parts * s.keys
            copies = self._new_copies(thread) if s.copies else None
            with w.loop("trip", s.trips) as trip:
                keys, values = loads.load(batch, part, trip, thread)
                with w.unrolled("u", s.unroll) as u, w.unrolled("lane", s.vector_width) as lane:
                    at = loads.at_lane(loads.at(batch, part, trip, thread, u), lane)
                    number = Cast(Load(keys, (u, lane)), INDEX)
                    with w.when(number >= first_key, number < first_key + s.keys if s.key_parts > 1 else None):
                        key, value = loads.inside(number), Load(values, (u, lane))
                        here = {**at, **axis_indices(key, p.scatter.keys)}
                        self._reduce_term(value, here, key - first_key, copies, thread)
            if copies is not None:
                self._join_copies(copies, batch, first_key, thread)

    def _reduce_term(
        self, value: Expr, here: Mapping[str, Expr], key: Expr, copies: Buffer | None, thread: Expr
    ) -> None:
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

    def _new_copies(self, thread: Expr) -> Buffer:
        """Return copies of the totals of a block's elements in shared memory, without any term yet."""
        w, s = self.w, self.s
        count = len(self.how.copied) * s.keys * self.p.columns
        copies = w.allocate("copies", (s.copies, count), self.how.copy_dtype, MemoryScope.SHARED)
        with w.shared_out("place", count, s.threads, thread) as place, w.unrolled("copy", s.copies) as copy:
            w.store(copies, (copy, minimum(place, index(count - 1))), cast(self.how.identity, copies.dtype))
        w.barrier()
        return copies

    def _join_copies(self, copies: Buffer, batch: Expr, first_key: Expr, thread: Expr) -> None:
        """Reduce the totals in global memory with those of the copies that any term has changed."""
        w, s, p, scatter = self.w, self.s, self.p, self.p.scatter
        w.barrier()
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
        self.w.emit(AtomicReduce(self.how.op, self.totals, at, cast(value, self.how.dtype)))

    def _write_outputs(self) -> None:
        w, how = self.w, self.how
        points = self.totals.elements // how.count
        with self._each("write_outputs", points) as point:
            here = axis_indices(point, self.axes)
            result = w.allocate("result", (), self.p.scatter.stage.tensor.dtype, MemoryScope.REGISTER)
            totals = [Load(self.totals, self._at(index(n), here)) for n in range(how.count)]
            w.store(result, (), how.result(totals))
            for output in self.p.outputs:
                value = scalar_at(self.p.body_of(output, Load(result, ())), here)
                w.store(output.tensor, tuple(here[a.name] for a in self.axes), value)
