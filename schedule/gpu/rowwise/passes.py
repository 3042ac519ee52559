"""Writes the passes over a row: its reductions, one after another, and then what is written from it and from their
results."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import Binary, Broadcast, Expr, Load, Select, Unary, Var, const, index, maximum, minimum, rebuild
from ....ir.gpu.barrier import SyncScope
from ....ir.linear_form import affine_form
from ....ir.rewrite import loads_of, substitute
from ....te.functions import cast, equal
from ...problems.row_axes import column_axis, has_column_axis
from ...problems.rowwise import ReducedTensor
from ...tile.accumulation import Accumulation, register_dtype, store_state
from ...tile.contiguous import contiguous_vector
from ...tile.pieces import LoadedSpan
from ...tile.reciprocals import with_reciprocals
from ...tile.stage_body import scalar_at
from ..block_reduce import group_reduce, group_scratch
from .held_values import HeldValues, held_values
from .held_vectors import behind_vector, held_slot
from .sizes import RowStorage
from .vectors import RowIndex, RowVector, ThreadVectors

_SLOT = Var("slot#")
ACCUMULATORS = 4
"""How many accumulators a thread has for one reduction, so that as many additions are in flight at once."""


@dataclass(frozen=True, slots=True)
class RegisterVector:
    """A vector in registers: the elements along the last dimension of ``buffer``, at ``indices`` of the others, each at
    its place in ``span``."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    span: LoadedSpan

    def at(self, element: Expr) -> Load:
        """Return an element of the vector."""
        return Load(self.buffer, (*self.indices, self.span.place(element)))


@dataclass
class RowPasses:
    """The statements of one thread for the row that it works on.

    ``results`` has what each reduction found. ``preloaded`` has the operands that are in registers already: what is
    read along rows, beside the row inputs. ``value_registers`` has those of ``held_values``, by their tensors.
    """

    vectors: ThreadVectors
    results: dict[str, Expr] = field(default_factory=dict)
    preloaded: dict[Load, Buffer] = field(default_factory=dict)
    held_values: HeldValues | None = None
    value_registers: dict[str, Buffer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.problem, self.sizes, self.w = self.vectors.problem, self.vectors.sizes, self.vectors.w
        self.name = self.vectors.name
        loads, length = self.problem.other_loads, self.sizes.vector
        self.behind = {x: span for x in loads if (span := behind_vector(self.problem, x, length)) is not None}
        self.spans = {x: self.behind.get(x) or self.problem.span_of(x, length) for x in loads}
        all_held = self.sizes.storage == RowStorage.REGISTERS
        slots = ((x, held_slot(self.problem, x, self.sizes, _SLOT, all_held=all_held)) for x in self.spans)
        self.held = {load: slot for load, slot in slots if slot is not None}

    @property
    def read_once(self) -> tuple[Buffer, ...]:
        """The row inputs of which no thread loads an element that another one has."""
        again = {load.buffer for load in self.problem.other_loads if load not in self.held}
        again |= set(dict(self.problem.gathered))
        return tuple(b for b in self.problem.row_inputs if b not in again)

    def allocate_scratch(self, slots: int) -> list[tuple[Buffer, ...]]:
        """Shared memory for each reduction (see ``group_scratch``), and for what joined moments have besides."""
        dtypes = [r.accumulation.state_dtypes for r in self.problem.reductions]
        if self.sizes.joined_moments:
            dtypes.append(dtypes[0])
        return [
            group_scratch(self.w, self.name(f"state{n}"), self.vectors.group, of_state, slots)
            for n, of_state in enumerate(dtypes)
        ]

    def write_passes(self, row: RowIndex, scratch: Sequence[Sequence[Buffer]], slot: Expr | None) -> None:
        """All passes over ``row``. ``slot`` says which slot of the shared memory in ``scratch`` they use."""
        self._allocate_values()
        if self.sizes.joined_moments:
            self._reduce_moments(row, [s for buffers in scratch for s in buffers], slot)
        else:
            again = self.sizes.storage == RowStorage.GLOBAL  # each pass reads the row
            done = 0
            for group in self.problem.passes if again else [(r,) for r in self.problem.reductions]:
                self._reduce(row, dict(enumerate(group, done)), scratch, slot)
                done += len(group)
        if self.sizes.cluster_size > 1 and self.sizes.storage != RowStorage.CIRCULAR_BUFFER:
            # Others may still read this CTA's shared memory. A barrier at the end would wait for the writes as well.
            self.w.barrier(SyncScope.CLUSTER)
        if self.problem.elementwise_outputs:
            self._write_elementwise(row)
        if self.problem.per_row_outputs:
            self._write_per_row(row)

    # --- reductions

    def _reduce(
        self,
        row: RowIndex,
        reductions: Mapping[int, ReducedTensor],
        scratch: Sequence[Sequence[Buffer]],
        slot: Expr | None,
    ) -> None:
        """Some reductions by one pass over the row, by their numbers."""
        accumulators = self._accumulate(row, reductions)
        for n, reduction in reductions.items():
            how = reduction.accumulation
            state = self._thread_state(n, how, accumulators[n])
            group_reduce(self.w, self.name(f"group{n}"), self.vectors.group, state, how.combine, scratch[n], slot)
            self.results[reduction.tensor.name] = how.result([Load(v, ()) for v in state])
            if reduction.best is not None:
                self.results[reduction.best.name] = Load(state[0], ())

    def _reduce_moments(self, row: RowIndex, scratch: Sequence[Buffer], slot: Expr | None) -> None:
        """The sum of a row and the squares of deviations from its mean, with one exchange among threads.

        Each thread takes the deviations from the mean of its own elements. What two parts of n elements have makes

            total   = total_a + total_b
            squares = squares_a + squares_b + (total_a - total_b)^2 / 2n

        (T. F. Chan, G. H. Golub, R. J. LeVeque, "Updating formulae and a pairwise algorithm for computing sample
        variances", 1979). 1 / 2n is part of the state, since it differs from step to step.
        """
        (total, squares), w, s = self.problem.reductions, self.w, self.sizes
        own = s.vectors_per_thread * s.vector
        state = self._thread_state(0, total.accumulation, self._accumulate(row, {0: total})[0])
        scaled = Load(state[0], ()) * const(self.problem.column_count / own, state[0].dtype)
        self.results[total.tensor.name] = scaled  # its mean is that of the thread's elements
        state += self._thread_state(1, squares.accumulation, self._accumulate(row, {1: squares})[1])
        state.append(w.allocate(self.name("half_count"), (), state[0].dtype, MemoryScope.REGISTER))
        w.store(state[2], (), const(0.5 / own, state[2].dtype))

        def combine(a: Sequence[Expr], b: Sequence[Expr]) -> Sequence[Expr]:
            apart = a[0] - b[0]
            return a[0] + b[0], a[1] + b[1] + apart * apart * a[2], a[2] * const(0.5, a[2].dtype)

        group_reduce(w, self.name("group"), self.vectors.group, state, combine, scratch, slot)
        for reduction, found in zip((total, squares), state, strict=False):
            self.results[reduction.tensor.name] = reduction.accumulation.result([Load(found, ())])

    def _accumulate(self, row: RowIndex, reductions: Mapping[int, ReducedTensor]) -> dict[int, list[Buffer]]:
        """Return one pass over the row; what each accumulator of the thread has found for each reduction."""
        s, found = self.sizes, {n: self._identities(n, reduction) for n, reduction in reductions.items()}
        first, last = min(reductions), max(reductions)
        bodies = {n: self._hoisted(row, f"reduce{n}", self._bodies[n]) for n in reductions}
        values = self._computed_values(row, first)

        def accumulate(
            number: Expr,
            axes: Mapping[str, Expr],
            vector: RowVector | None,
            element: Expr,
            operands: Mapping[Load, RegisterVector],
        ) -> None:
            for n, r in reductions.items():
                state = [Load(a, (number,)) for a in found[n]]
                position = Var(column_axis(0)) if r.position is None else r.position
                value = self._value(bodies[n], axes, vector, element, operands)
                at = self._value(position, axes, vector, element, operands) if r.reducer.is_position else index(0)
                store_state(self.w, found[n], (number,), r.accumulation.accumulate(state, value, at))

        is_last = last == len(self.problem.reductions) - 1 and not self.problem.elementwise_outputs
        with self.vectors.each_in_registers(row, f"reduce{first}", last_pass=is_last) as vector:
            operands = self._load_operands(row, vector, f"reduce{first}", list(bodies.values()))
            with self.vectors.elements(f"reduce{first}_v") as v:
                axes, count = self.vectors.element_axes(row, vector, v), self._accumulators
                self._hold(values, axes, vector, v, operands)
                accumulate(v % count if count > 1 else index(0), axes, vector, v, operands)
        if s.edge_columns:
            bodies = self._edge_bodies(row, f"edge{first}", bodies, {n: r.body for n, r in reductions.items()})
            with self.w.when(self.vectors.has_edge()):
                axes = self.vectors.element_axes(row, None, index(0))
                accumulate(index(0), axes, None, index(0), {})
        return found

    @property
    def _accumulators(self) -> int:
        """How many accumulators a thread has for a reduction."""
        s = self.sizes
        return min(s.vector, ACCUMULATORS) if s.vectors_per_thread * s.vector > ACCUMULATORS else 1

    def _identities(self, n: int, reduction: ReducedTensor) -> list[Buffer]:
        """Return the accumulators of a reduction, with its identity in all of them."""
        how, w, count = reduction.accumulation, self.w, self._accumulators
        accumulators = [
            w.allocate(self.name(f"accumulator{n}_{k}"), (count,), d, MemoryScope.REGISTER)
            for k, d in enumerate(how.state_dtypes)
        ]
        with w.unrolled(self.name(f"identity{n}"), count) as i:
            for accumulator, identity in zip(accumulators, how.identity, strict=True):
                w.store(accumulator, (i,), identity)
        return accumulators

    def _thread_state(self, n: int, how: Accumulation, accumulators: Sequence[Buffer]) -> list[Buffer]:
        """Return all accumulators of the thread as one state."""
        w = self.w
        state = [
            w.allocate(self.name(f"state{n}_{k}"), (), d, MemoryScope.REGISTER) for k, d in enumerate(how.state_dtypes)
        ]
        for value, accumulator in zip(state, accumulators, strict=True):
            w.store(value, (), Load(accumulator, (index(0),)))
        for k in range(1, accumulators[0].shape[0]):
            new = how.combine([Load(v, ()) for v in state], [Load(a, (index(k),)) for a in accumulators])
            store_state(w, state, (), new)
        return state

    # --- outputs

    def _write_elementwise(self, row: RowIndex) -> None:
        w, s, outputs = self.w, self.sizes, self.problem.elementwise_outputs
        done = len(self.problem.reductions)
        bodies = {n: self._hoisted(row, f"write{n}", self._bodies[done + n]) for n in range(len(outputs))}
        with self.vectors.each_in_registers(row, "write", last_pass=True) as vector:
            operands = self._load_operands(row, vector, "write", list(bodies.values()))
            new = [
                w.allocate(self.name(f"results{n}"), (s.vector,), c.tensor.dtype, MemoryScope.REGISTER)
                for n, c in enumerate(outputs)
            ]
            with self.vectors.elements("write_v") as v:
                axes = self.vectors.element_axes(row, vector, v)
                for buffer, body in zip(new, bodies.values(), strict=True):
                    w.store(buffer, (v,), self._value(body, axes, vector, v, operands))
            with w.when(row.exists):
                for buffer, c in zip(new, outputs, strict=True):
                    indices = self.problem.output_indices(
                        c, self.vectors.row_indices(row), self.vectors.column_indices(vector)
                    )
                    w.store(c.tensor, indices, Load(buffer, contiguous_vector((index(0),), s.vector)))
        if s.edge_columns:
            has_edge = self.vectors.has_edge()
            bodies = self._edge_bodies(row, "edge_write", bodies, {n: c.body for n, c in enumerate(outputs)})
            with w.when(has_edge, row.exists):
                axes = self.vectors.element_axes(row, None, index(0))
                for c, body in zip(outputs, bodies.values(), strict=True):
                    value = self._value(body, axes, None, index(0), {})
                    edge = (self.vectors.edge_column(row),)
                    w.store(c.tensor, self.problem.output_indices(c, self.vectors.row_indices(row), edge), value)

    def _write_per_row(self, row: RowIndex) -> None:
        conditions: list[Expr] = [equal(self.vectors.group.thread_rank, 0)]
        if self.sizes.cluster_size > 1:
            conditions.append(equal(self.vectors.cta_rank, 0))
        if row.exists is not None:
            conditions.append(row.exists)
        with self.w.when(*conditions):
            axes = self.vectors.row_axes(row)
            for c in self.problem.per_row_outputs:
                self.w.store(c.tensor, self.vectors.row_indices(row), self._value(c.body, axes, None, index(0), {}))

    # --- values that are held

    @property
    def _bodies(self) -> Sequence[Expr]:
        """Those of the reductions and the elementwise outputs, which read values that are held."""
        if self.held_values is not None:
            return self.held_values.bodies
        return [*(r.body for r in self.problem.reductions), *(c.body for c in self.problem.elementwise_outputs)]

    def _allocate_values(self) -> None:
        """Registers for the values that the passes over a row hold."""
        s = self.sizes
        if s.holds_values:
            self.held_values = held_values(self.problem)
            for n, value in enumerate(self.held_values.values):
                dtype = register_dtype(value.buffer.dtype)
                self.value_registers[value.buffer.name] = self.w.allocate(
                    self.name(f"value{n}"), (s.vectors_per_thread, s.vector), dtype, MemoryScope.REGISTER
                )

    def _computed_values(self, row: RowIndex, number: int) -> dict[str, Expr]:
        """Return the values that pass ``number`` computes, by their tensors."""
        values = () if self.held_values is None else self.held_values.values
        computed = {v.buffer.name: v.value for v in values if v.first == number}
        return {name: self._hoisted(row, f"hold{number}_{n}", e) for n, (name, e) in enumerate(computed.items())}

    def _hold(
        self,
        values: Mapping[str, Expr],
        axes: Mapping[str, Expr],
        vector: RowVector,
        element: Expr,
        operands: Mapping[Load, RegisterVector],
    ) -> None:
        """Compute ``values`` at an element of a vector."""
        for name, value in values.items():
            registers = self.value_registers[name]
            found = cast(self._value(value, axes, vector, element, operands), registers.dtype)
            self.w.store(registers, (self.vectors.register_slot(vector), element), found)

    def _edge_bodies(
        self, row: RowIndex, name: str, bodies: Mapping[int, Expr], given: Mapping[int, Expr]
    ) -> dict[int, Expr]:
        """Return the bodies for edge columns, whose values are not held: those that are ``given``."""
        if self.held_values is None or not self.held_values.values:
            return dict(bodies)
        return {n: self._hoisted(row, f"{name}_{n}", body) for n, body in given.items()}

    # --- operands

    def preload_operands(self, row: RowIndex) -> None:
        """Load the operands of the elementwise outputs into registers, for the thread's first vectors, all at once."""
        s = self.sizes
        loads = self._operands(c.body for c in self.problem.elementwise_outputs) if s.preloaded_vectors else {}
        for n, (load, span) in enumerate(loads.items()):
            shape = (s.preloaded_vectors, span.count)
            self.preloaded[load] = self.w.allocate(self.name(f"preloaded{n}"), shape, load.dtype, MemoryScope.REGISTER)
        if loads:
            with self.vectors.each(row, "preload") as vector, self.w.when(self._is_preloaded(vector)):
                for load, span in loads.items():
                    indices = contiguous_vector((vector.slot, index(0)), span.count)
                    self.w.store(self.preloaded[load], indices, self._operand_vector(load, span, row, vector))

    def _is_preloaded(self, vector: RowVector) -> Expr | None:
        """Return whether the operands of a vector are preloaded; None where those of all vectors are."""
        s = self.sizes
        return vector.slot < s.preloaded_vectors if s.preloaded_vectors < s.vectors_per_thread else None

    def _operands(self, bodies: Iterable[Expr]) -> Mapping[Load, LoadedSpan]:
        """Return what is loaded in whole vectors for ``bodies``, and is no row input: of which neighbours."""
        read = {load for body in bodies for load in loads_of(body)}
        spans = {load: LoadedSpan(0, self.sizes.vector) for load in self.problem.broadcast_loads}
        spans |= {load: span for load, span in self.spans.items() if span is not None and load not in self.held}
        return {load: span for load, span in spans.items() if load in read}

    def _operand_vector(self, load: Load, span: LoadedSpan, row: RowIndex, vector: RowVector) -> Load:
        """Return the neighbours that an operand has for a vector of the row."""
        if load not in self.problem.broadcast_loads:
            axes, lowest = (self.vectors.element_axes(row, vector, index(n)) for n in (0, span.lowest))
            others = [substitute(i, axes) for i in load.indices[:-1]]
            first = substitute(load.indices[-1], lowest) - span.before
            there = contiguous_vector((*others, first), span.count)
            mask = None if span.mask is None else substitute(span.mask, axes)
            return Load(load.buffer, there, mask if mask is None or span.count == 1 else Broadcast(mask, span.count))
        axes, count = self.vectors.element_axes(row, vector, index(0)), self.problem.vector_axes
        leading = [substitute(i, axes) for i in load.indices[:-count]]
        columns, first = self.vectors.column_indices(vector), self.vectors.first_column(row)
        if self.sizes.edge_columns and len(columns) == 1:
            # All bounds are known here, so that vectors at any offset are loaded without a test, and that they are at
            # the same place between two multiples of their length.
            v = self.sizes.vector
            whole = minimum(vector.column - first, index((self.sizes.vectors - 1) * v))
            columns = contiguous_vector((whole + (first + v) % v,), v)
        return Load(load.buffer, (*leading, *columns[-count:]))

    def _load_operands(
        self, row: RowIndex, vector: RowVector, name: str, bodies: Sequence[Expr]
    ) -> Mapping[Load, RegisterVector]:
        """Return the operands of ``bodies`` for one vector of the row, in registers."""
        s = self.sizes
        found: dict[Load, RegisterVector] = {}
        for n, (load, span) in enumerate(self._operands(bodies).items()):
            preloads = load in self.preloaded and name == "write"
            if preloads and self._is_preloaded(vector) is None:
                found[load] = RegisterVector(self.preloaded[load], (vector.slot,), span)
                continue
            buffer = self.w.allocate(self.name(f"{name}_operand{n}"), (span.count,), load.dtype, MemoryScope.REGISTER)
            whole = contiguous_vector((index(0),), span.count)
            with self.w.when(vector.slot >= s.preloaded_vectors if preloads else None):
                self.w.store(buffer, whole, self._operand_vector(load, span, row, vector))
            if preloads:
                slot = minimum(vector.slot, index(s.preloaded_vectors - 1))
                with self.w.when(self._is_preloaded(vector)):
                    self.w.store(
                        buffer, whole, Load(self.preloaded[load], contiguous_vector((slot, index(0)), span.count))
                    )
            found[load] = RegisterVector(buffer, (), span)
        return found

    # --- values

    def _value(
        self,
        body: Expr,
        axes: Mapping[str, Expr],
        vector: RowVector | None,
        element: Expr,
        operands: Mapping[Load, RegisterVector],
    ) -> Expr:
        """``body`` at ``axes``: at an element of ``vector``, or (None) at the thread's edge column or at no column.

        Results of reductions, ``operands`` and row inputs are taken from registers.
        """
        tensors = self.problem.row_inputs
        own = {b.name: [affine_form(i) for i in self.problem.own_indices_of(b)] for b in tensors}
        registers, edge_registers = self.vectors.registers, self.vectors.edge_registers

        def from_registers(load: Load) -> Expr:
            name = load.buffer.name
            if name in self.results:
                return self.results[name]
            if name in self.value_registers and vector is not None:
                held = Load(self.value_registers[name], (self.vectors.register_slot(vector), element))
                return cast(held, load.dtype)
            if load in operands and load in self.behind and vector is not None:
                return self._from_vector(load, vector, element, operands[load])
            if load in operands:
                return operands[load].at(element)
            if name in registers and [affine_form(i) for i in load.indices] == own[name]:
                if vector is None:
                    return Load(edge_registers[name], ())
                return Load(registers[name], (self.vectors.register_slot(vector), element))
            span = self.spans.get(load)
            if load in self.held and span is not None and vector is not None:
                slot = substitute(self.held[load], {_SLOT.name: self.vectors.register_slot(vector)})
                return Load(registers[name], (slot, span.place(element)))
            return load

        return scalar_at(body, axes, from_registers)

    def _from_vector(self, load: Load, vector: RowVector, element: Expr, behind: RegisterVector) -> Expr:
        """``load`` at an element of a vector: from the vector itself, or from what is ``behind`` it."""
        length, further = self.sizes.vector, behind.span.count
        there = minimum(element + further, index(length - 1))
        own = Load(self.vectors.registers[load.buffer.name], (self.vectors.register_slot(vector), there))
        return Select(element + further < length, own, behind.at(maximum(element, index(length - further))))

    def _hoisted(self, row: RowIndex, name: str, body: Expr) -> Expr:
        """``body`` with what is the same for all columns computed once for the row, in registers."""
        axes = self.vectors.row_axes(row)
        computed: dict[Expr, Buffer] = {}

        def hoisted(e: Expr, taken: bool = True) -> Expr:
            if isinstance(e, Load) and taken and self.problem.joined_extent and not has_column_axis(e):
                if e not in computed and e.buffer.name not in self.results:
                    computed[e] = self.w.allocate(
                        self.name(f"{name}_row{len(computed)}"), (), e.dtype, MemoryScope.REGISTER
                    )
                    self.w.store(computed[e], (), self._value(e, axes, None, index(0), {}))
                return Load(computed[e], ()) if e in computed else e
            is_there = taken or all(load.buffer.name in self.results for load in loads_of(e))
            if isinstance(e, Binary | Unary) and e.dtype.is_float and not has_column_axis(e) and is_there:
                dtype = register_dtype(e.dtype)
                if e not in computed:
                    computed[e] = self.w.allocate(
                        self.name(f"{name}_row{len(computed)}"), (), dtype, MemoryScope.REGISTER
                    )
                    value = self._value(e, axes, None, index(0), {})
                    self.w.store(computed[e], (), cast(value, dtype))
                there = Load(computed[e], ())
                return cast(there, e.dtype)
            if isinstance(e, Select):  # what a branch that is not taken loads may not be there
                return Select(hoisted(e.condition, taken), hoisted(e.then, False), hoisted(e.otherwise, False))
            return rebuild(e, [hoisted(c, taken) for c in e.children]) if e.children else e

        return hoisted(with_reciprocals(body, has_column_axis))
