"""Writes the epilogue of a large product on Hopper and Blackwell: accumulators become outputs, which are stored tile by
tile. Those in tensor memory are loaded into registers subtile by subtile.

A warpgroup computes its rows of a tile subtile by subtile: 64 rows and at most 128 bytes of columns of one output.
There are three ways to store a subtile:

    by TMA            it is put into one of several stages in shared memory (16 bits by stmatrix), and a TMA store takes
                      it from there, as rows, or as whole lines of memory where rows are shorter; a CTA with one tile
                      has these stages in the place of A
    as staged rows    stmatrix puts it into one stage, and each warp stores the 16 rows that it staged; where rows are
                      pixels, and neighbours in the results, it stores eight pixels of a column at once
    from registers    every thread stores the pairs of columns that it holds; where rows are pixels, and neighbours in
                      the results, eight threads store eight pixels of a column, which are a sector of memory

What an output reads besides the accumulators (its sources: a bias, a residual) is loaded one subtile ahead.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd, prod

from ....ir.buffer import Buffer, Layout, MemoryScope, Swizzle
from ....ir.build import Writer
from ....ir.expr import (
    WARP_LANES,
    Binary,
    BinaryOp,
    Broadcast,
    Cast,
    Const,
    Expr,
    Load,
    Ramp,
    Select,
    Var,
    conjunction,
    index,
    logical_and,
    minimum,
    walk,
)
from ....ir.gpu.barrier import SyncScope
from ....ir.gpu.fence import AsyncProxyFence
from ....ir.gpu.ldmatrix import StoreMatrix
from ....ir.gpu.tcgen05 import HALF_LANES, TensorMemoryLoad
from ....ir.gpu.tma import TmaStore, TmaStoreCommit, TmaStoreWait, tma_swizzle
from ....ir.gpu.wgmma import WGMMA_M
from ....ir.rewrite import free_variables, loads_of
from ....te.functions import equal
from ...problems.gemm import Gemm, Result
from ...tile.contiguous import contiguous_vector
from ...tile.stage_body import vector_at
from ..split_k import partial_at
from .grouped import ROW_END
from .k_atoms import joined_groups
from .mainloop import WarpRoles
from .operand_stages import OperandStages
from .result_box import VECTOR_BYTES, ResultBox, can_store_by_tma, line_box, reads_sources, result_box
from .sizes import SPARE_REGISTERS, WARPGROUP_WARPS, GemmSizes, stored_columns, subtile_columns
from .tensor_memory import TensorAccumulators

WARP_ROWS = WGMMA_M // WARPGROUP_WARPS
PAIRS_AT_ONCE = 4
"""What belongs to so many pairs of columns is loaded at once, ahead of stores that it might depend on."""
COLUMNS_AT_ONCE = 32
"""So many columns of tensor memory are loaded at once where results are stored from registers."""
FEW_ACCUMULATORS = 128
"""Accumulators of a thread up to which registers are left to store many staged rows at once. For tile after tile that
takes an H200 1 % less for 4095x4097x4093, and 4 to 12 % less for 2048x50257x768 with tiles of 128x256. For a single
tile the longer code takes longer to load: 8.2 us for 1000x1111x777, not 7.9."""
VALUE_REGISTERS = 12
"""Further ones where results are more than the cast of an accumulator (likewise)."""


@dataclass(frozen=True, slots=True)
class _Subtile:
    """Those ``columns`` of a tile of one output that are staged together, in the 64 rows of the wgmma atom with the
    number ``atom``."""

    result: Result
    columns: range
    atom: int


@dataclass(frozen=True, slots=True)
class TileFragments:
    """Accumulators of an atom in registers: ``buffer[row, i]`` holds a thread's ``i + begin``-th element of the
    columns of a tile, and those of the next accumulators begin ``stride`` further."""

    buffer: Buffer
    row: int
    begin: int
    stride: int


Accumulators = Buffer | TensorAccumulators
"""The accumulators of a warpgroup: a register buffer (atom, element), or columns of tensor memory."""

SourceRegisters = Mapping[Expr, Buffer]
"""The sources of a subtile: each load of its output, or what follows from it, and the registers that hold it."""


class Epilogue:
    """Stores the outputs of all consumer warpgroups. ``several_tiles``: whether a CTA does so for tile after tile."""

    def __init__(self, w: Writer, gemm: Gemm, sizes: GemmSizes[int], roles: WarpRoles, several_tiles: bool) -> None:
        self.w, self.gemm, self.s, self.roles, self.several_tiles = w, gemm, sizes, roles, several_tiles
        self.lane, self.warpgroup, self.warp_in_group = roles.lane, roles.warpgroup, roles.warp % WARPGROUP_WARPS
        self.elected = logical_and(equal(self.warp_in_group, 0), equal(self.lane, 0))
        self.stores_rows = bool(sizes.epilogue_stages) and not can_store_by_tma(gemm)
        side, columns = subtile_columns(gemm), int(stored_columns(gemm, sizes.tile_n))
        parts = [range(first, min(first + side, columns)) for first in range(0, columns, side)]
        self.staged = parts if sizes.epilogue_stages else []
        self.stages = dict[int, Buffer]()
        """Where columns are staged, by how many they are: (warpgroup, stage, row, column), or (warpgroup, stage,
        column, row) where rows are neighbours in the results."""
        self.reused: OperandStages | None = None
        """The operand whose stages are used instead, one for each of these. A warpgroup overwrites the rows that it
        alone has read."""

    def allocate_stages(self, a: OperandStages) -> None:
        """Allocate shared memory for what is staged, if that does not take the place of ``a``. Whole subtiles share it,
        and a rest has its own."""
        swizzle = tma_swizzle(self.gemm.results[0].tensor.dtype)
        self.reused = a if self.s.reuses_stages else None
        for columns in dict.fromkeys(len(part) for part in self.staged):
            whole = columns == subtile_columns(self.gemm)
            name, swizzled = ("staged", True) if whole else ("staged_rest", self.gemm.along_m)
            if self.reused is None:
                self.stages[columns] = self._allocate_stages(name, columns, swizzle if swizzled else None)
            else:
                self.stages[columns] = a.buffer

    def _staged_at(self, stage: int, row: Expr, column: Expr) -> tuple[Expr, ...]:
        """Return the indices of a place in a stage. Where rows are neighbours in the results, ``row`` is the number of
        a column, and ``column`` that of a row."""
        if self.reused is None:
            return self.warpgroup, index(stage), row, column
        atom = self.warpgroup * self.s.atoms_m
        if self.reused.along_k:
            return index(stage), index(0), atom * WGMMA_M + row, column
        return index(stage), index(0), atom, row, column

    def _allocate_stages(self, name: str, columns: int, swizzle: Swizzle | None = None) -> Buffer:
        s, subtile = self.s, WGMMA_M * columns
        sides = (columns, WGMMA_M) if self.gemm.along_m else (WGMMA_M, columns)
        layout = Layout((s.epilogue_stages * subtile, subtile, sides[1], 1), swizzle) if swizzle is not None else None
        shape = (s.consumer_warpgroups, s.epilogue_stages, *sides)
        return self.w.allocate(name, shape, self.gemm.results[0].tensor.dtype, MemoryScope.SHARED, layout)

    @property
    def _subtiles(self) -> list[_Subtile]:
        """All subtiles of a warpgroup, in the order in which they are stored."""
        return [
            _Subtile(r, columns, atom)
            for r in self.gemm.results
            for columns in self.staged
            for atom in range(self.s.atoms_m)
        ]

    def load_first_sources(self, at: Mapping[str, Expr]) -> SourceRegisters:
        """Begin to load the sources of the first subtile, while wgmma may still be under way."""
        return self._load_sources(self._subtiles[0], at) if self.staged else {}

    def store(self, accumulators: Accumulators, at: Mapping[str, Expr], sources: SourceRegisters) -> None:
        """Store all outputs of the warpgroup's rows, which begin at ``at`` (axis -> index). ``sources`` are those of
        the first subtile; where they have not been loaded, there are none."""
        if not self.staged:
            for atom in range(self.s.atoms_m):
                if self.gemm.along_pixels:
                    assert isinstance(accumulators, Buffer)
                    self._store_pixels(accumulators, atom, at)
                elif isinstance(accumulators, Buffer):
                    self._store_from_registers(accumulators, atom, at, 0, self.s.tile_n)
                else:
                    for first in range(0, self.s.tile_n, COLUMNS_AT_ONCE):
                        columns = min(COLUMNS_AT_ONCE, self.s.tile_n - first)
                        self._store_from_registers(accumulators, atom, at, first, columns)
            return
        for number, subtile in enumerate(self._subtiles):
            here = sources
            if number + 1 < len(self._subtiles):
                sources = self._load_sources(self._subtiles[number + 1], at)
            self._store_subtile(accumulators, subtile, at, here, number)

    def wait_for_stores(self) -> None:
        """Wait until TMA has read all stages."""
        if self.staged and not self.stores_rows:
            with self.w.when(self.elected):
                self.w.emit(TmaStoreWait(0))

    def store_partials(self, accumulators: Buffer, partials: Buffer, outer: tuple[Expr, ...] = ()) -> None:
        """Store a warpgroup's accumulators to ``partials``, (``outer``, ``partial_at`` a row and a column of the CTA's
        tile)."""
        w, s = self.w, self.s
        width = 1 if self.gemm.along_m else 2
        for atom in range(s.atoms_m):
            with (
                w.unrolled("pair", s.tile_n // 8) as pair,
                w.unrolled("half", 2) as half,
                w.unrolled("column", 2 // width) as column,
            ):
                row = (self.warpgroup * s.atoms_m + atom) * WGMMA_M + self._fragment_row(half)
                first, held = pair * 8 + self.lane % 4 * 2 + column, pair * 4 + half * 2 + column
                here = contiguous_vector((*outer, *partial_at(self.gemm, row, first)), width)
                w.store(partials, here, Load(accumulators, contiguous_vector((index(atom), held), width)))

    # --- from registers

    def _fragments(self, accumulators: Accumulators, atom: int, first: int, columns: int) -> TileFragments:
        """Return the accumulators of an atom in ``columns`` columns of the tile from ``first`` on. Those in tensor
        memory are loaded, of all accumulators."""
        if isinstance(accumulators, Buffer):
            return TileFragments(accumulators, atom, 0, self.s.tile_n // 2)
        w, count, held = self.w, len(self.gemm.accumulators), columns // 2
        loaded = w.allocate("loaded", (1, count * held), accumulators.buffer.dtype, MemoryScope.REGISTER)
        for number in range(count):
            column = accumulators.column + (number * self.s.tile_n + first)
            source = (index(atom * HALF_LANES), column)
            w.emit(TensorMemoryLoad(loaded, (index(0), index(number * held)), accumulators.buffer, source, columns))
        return TileFragments(loaded, 0, first // 2, held)

    def _store_from_registers(
        self, accumulators: Accumulators, atom: int, at: Mapping[str, Expr], first_column: int, columns: int
    ) -> None:
        """Store some columns of an atom, as threads hold them."""
        w, gemm = self.w, self.gemm
        width = 2 if gemm.n.extent % 2 == 0 else 1
        with w.scope():
            fragments = self._fragments(accumulators, atom, first_column, columns)
            with (
                w.unrolled("pair", columns // 8) as number,
                w.unrolled("half", 2) as half,
                w.unrolled("column", 2 // width) as column,
            ):
                pair = number + first_column // 8 if first_column else number
                m, n = self._position(at, atom, pair, half)
                here = {**at, "m": m, "n": n + column}
                inside = [*self._rows_inside(at, here["m"]), here["n"] < gemm.n.extent]
                with w.when(*inside):
                    for result in gemm.results:
                        first = pair * 4 + half * 2 + column
                        with w.when(_existing(result, here)):
                            value = self._value(fragments, first, result, here, width)
                            indices = [vector_at(i, here, "n", width) for i in result.indices]
                            w.store(result.tensor, [i.value if isinstance(i, Broadcast) else i for i in indices], value)

    def _store_pixels(self, accumulators: Buffer, atom: int, at: Mapping[str, Expr]) -> None:
        """Store what a thread holds of 64 pixels. What is the same for all pixels is loaded ahead of the stores, for
        some pairs of columns at once. A pair that is a pair in the results too is stored as one."""
        w, pairs = self.w, self.s.tile_n // 8
        together = gcd(pairs, PAIRS_AT_ONCE)
        with w.unrolled("pairs", pairs // together) as group:
            held = self._load_same(group * together, together, at)
            with w.unrolled("half", 2) as half:
                m, _ = self._position(at, atom, index(0), half)
                with w.when(*self._rows_inside(at, m)), w.unrolled("pair", together) as pair:
                    self._store_pair(accumulators, atom, {**at, "m": m}, group * together + pair, half, pair, held)

    def _load_same(self, first: Expr, pairs: int, at: Mapping[str, Expr]) -> SourceRegisters:
        """Load the sources that are the same for all rows, for ``pairs`` pairs of columns from the ``first`` one on."""
        w, gemm, found = self.w, self.gemm, dict[Expr, Buffer]()
        for load in dict.fromkeys(e for r in gemm.results for e in _sources(gemm, r) if _halves(e) == 1):
            found[load] = w.allocate("source", (2 * pairs,), load.buffer.dtype, MemoryScope.REGISTER)
            with w.unrolled("source_column", 2 * pairs) as column:
                n = at["n"] + (first * 8 + column // 2 * 8 + self.lane % 4 * 2 + column % 2)
                here = {**at, "n": minimum(n, index(gemm.n.extent - 1))}
                w.store(found[load], (column,), vector_at(load, here, "n", 1))
        return found

    def _store_pair(
        self,
        accumulators: Buffer,
        atom: int,
        at: Mapping[str, Expr],
        pair: Expr,
        half: Expr,
        number: Expr,
        held: SourceRegisters,
    ) -> None:
        """Store a pair of columns of the row ``at["m"]``, the ``number``-th whose sources are ``held``."""
        w, gemm = self.w, self.gemm
        width = 2 if all(_has_pairs(r, gemm.n.extent) for r in gemm.results) else 1
        with w.unrolled("column", 2 // width) as column:
            here = {**at, "n": at["n"] + (pair * 8 + self.lane % 4 * 2 + column)}
            with w.when(here["n"] < gemm.n.extent):
                sources = {load: (registers, number * 2 + column) for load, registers in held.items()}
                for result in gemm.results:
                    first = pair * 4 + half * 2 + column
                    fragments = self._fragments(accumulators, atom, 0, self.s.tile_n)
                    value = self._value(fragments, first, result, here, width, sources)
                    *outer, last = (vector_at(i, here, "n", 1) for i in result.indices)
                    with w.when(_existing(result, here)):
                        w.store(result.tensor, (*outer, Ramp(last, 1, width) if width > 1 else last), value)

    def _rows_inside(self, at: Mapping[str, Expr], m: Expr) -> list[Expr]:
        """Return whether the row ``m`` of the tile at ``at`` belongs to the result, or to the group of the tile."""
        return [m < at[ROW_END]] if ROW_END in at else self.gemm.rows_inside(m)

    def _position(self, at: Mapping[str, Expr], atom: int, pair: Expr, half: Expr) -> tuple[Expr, Expr]:
        """Return where in the result a pair of a lane's accumulators belongs: (m, n). A lane has pairs in two halves of
        the 16 rows of its warp, and in every eighth column."""
        return at["m"] + (self._atom_row(atom) + self._fragment_row(half)), at["n"] + (pair * 8 + self.lane % 4 * 2)

    def _fragment_row(self, half: Expr) -> Expr:
        """Return which of the 64 rows of an atom the lane has in one half of its fragments."""
        return self.warp_in_group * WARP_ROWS + self.lane // 4 + half * 8

    def _atom_row(self, atom: int) -> Expr | int:
        """Return where the rows of an atom begin, less 16 for each warp of the warpgroup. A warp has 16 of 64 rows. Of
        128 rows in tensor memory it has 32 that follow one another, 16 for each of two atoms."""
        if not self._interleaves:
            return atom * WGMMA_M
        return self.warp_in_group * WARP_ROWS + atom * WARP_ROWS

    @property
    def _interleaves(self) -> bool:
        """Whether the rows of an atom lie among those of another one."""
        return self.s.tensor_columns > 0 and self.s.atoms_m > 1

    def _value(
        self,
        fragments: TileFragments,
        first: Expr,
        result: Result,
        at: Mapping[str, Expr],
        width: int,
        sources: Mapping[Expr, tuple[Buffer, Expr]] | None = None,
    ) -> Expr:
        """Return an output at ``width`` neighbours along ``n`` from ``at`` on, whose accumulators begin at ``first``.
        ``sources``: loads that are done already, the registers that hold them, and where in those they begin."""
        first = first - fragments.begin if fragments.begin else first
        column = Var("n") - at["n"] + first if width > 1 else first

        def replaced(load: Load) -> Expr:
            if sources and load in sources:
                registers, begin = sources[load]
                return Load(registers, (Var("n") - at["n"] + begin,))
            if load.buffer.name not in self.gemm.accumulators:
                return load
            number = self.gemm.accumulators.index(load.buffer.name)
            return Load(fragments.buffer, (index(fragments.row), column + number * fragments.stride))

        return vector_at(result.value, at, "n", width, replaced)

    # --- through shared memory

    def _load_sources(self, subtile: _Subtile, at: Mapping[str, Expr]) -> SourceRegisters:
        """Load what a subtile needs into registers: for every pair of columns, and for each half of the rows if it is
        not the same for all rows."""
        w, sources, columns = self.w, dict[Expr, Buffer](), len(subtile.columns)
        for load in _sources(self.gemm, subtile.result):
            halves = _halves(load)
            shape = (columns // 4 * halves,)
            sources[load] = w.allocate("source", shape, load.buffer.dtype, MemoryScope.REGISTER)
            with (
                w.unrolled("source_pair", columns // 8) as pair,
                w.unrolled("source_half", halves) as half,
            ):
                value = vector_at(load, self._readable_position(subtile, at, pair, half), "n", 2)
                w.store(sources[load], (Ramp(pair * (2 * halves) + half * 2, 1, 2),), value)
        return sources

    def _readable_position(self, subtile: _Subtile, at: Mapping[str, Expr], pair: Expr, half: Expr) -> dict[str, Expr]:
        """Return where a pair of an output belongs. It is moved inside the result if other tensors are read there."""
        gemm = self.gemm
        m, n = self._position(at, subtile.atom, pair + subtile.columns.start // 8, half)
        if reads_sources(gemm, subtile.result):
            m, n = minimum(m, gemm.m_end - 1), minimum(n, index(gemm.n.extent - 2))
            inside = () if gemm.window is None else gemm.window.inside(m)
            m = Select(logical_and(*inside), m, index(0)) if inside else m  # of a patch beyond the last pixel
            exists = _existing(subtile.result, {**at, "m": m, "n": n}) if joined_groups(gemm) > 1 else None
            n = n if exists is None else Select(exists, n, index(0))  # of a group beyond the last one
        return {**at, "m": m, "n": n}

    def _store_subtile(
        self,
        accumulators: Accumulators,
        subtile: _Subtile,
        at: Mapping[str, Expr],
        sources: SourceRegisters,
        number: int,
    ) -> None:
        """Compute a subtile, the ``number``-th of its tile, stage it, and store it."""
        w, s, result, columns = self.w, self.s, subtile.result, subtile.columns
        corner = {**at, "m": at["m"] + self._atom_row(subtile.atom), "n": at["n"] + columns.start}
        with w.scope():
            output = self._computed(accumulators, subtile, at, sources)
            if self.stores_rows:
                w.barrier(SyncScope.WARP)
                self._stage(output, len(columns), 0)
                w.barrier(SyncScope.WARP)
                if self.gemm.along_pixels:
                    self._store_staged_pixels(result, corner, len(columns))
                else:
                    self._store_rows(result, corner, len(columns))
                return
            if number == 0 or number >= s.epilogue_stages:
                with w.when(self.elected):
                    w.emit(TmaStoreWait(0 if number == 0 else s.epilogue_stages - 1))
                w.barrier(SyncScope.WARPGROUP)
            self._stage(output, len(columns), number % s.epilogue_stages)
            w.emit(AsyncProxyFence())
            w.barrier(SyncScope.WARPGROUP)
            if self._interleaves:
                corner["m"] = at["m"] + subtile.atom * WARP_ROWS
            self._store_by_tma(result, corner, len(columns), number % s.epilogue_stages)

    def _computed(
        self, accumulators: Accumulators, subtile: _Subtile, at: Mapping[str, Expr], sources: SourceRegisters
    ) -> Buffer:
        """Return the outputs of a subtile that a thread holds, as stmatrix takes them."""
        w, result, columns = self.w, subtile.result, subtile.columns
        fragments = self._fragments(accumulators, subtile.atom, columns.start, len(columns))
        output = w.allocate("output", (len(columns) // 2,), result.tensor.dtype, MemoryScope.REGISTER)
        with w.unrolled("output_pair", len(columns) // 8) as pair, w.unrolled("output_half", 2) as half:
            here = self._readable_position(subtile, at, pair, half)
            held = {load: (b, pair * 4 + half * 2 if _halves(load) == 2 else pair * 2) for load, b in sources.items()}
            first = (pair + columns.start // 8) * 4 + half * 2
            value = self._value(fragments, first, result, here, 2, held)
            w.store(output, (Ramp(pair * 4 + half * 2, 1, 2),), value)
        return output

    def _stage(self, output: Buffer, columns: int, stage: int) -> None:
        """Put a subtile into a stage: 16 bits by stmatrix, matrices of 8 by 8, two below one another, two such pairs at
        once; 32 bits by pairs of columns."""
        w, lane, staged = self.w, self.lane, self.stages[columns]
        if output.dtype.bits == 32:
            with w.unrolled("staged_pair", columns // 8) as pair, w.unrolled("half", 2) as half:
                outer = (Broadcast(i, 2) for i in (self.warpgroup, index(stage), self._fragment_row(half)))
                pair_columns = Ramp(pair * 8 + lane % 4 * 2, 1, 2)
                w.store(staged, (*outer, pair_columns), Load(output, (Ramp(pair * 4 + half * 2, 1, 2),)))
            return
        turned = self.gemm.along_m

        def place(column: Expr) -> tuple[Expr, ...]:
            """Return where a lane's row of 8 elements begins, of the matrices from ``column`` on."""
            row = self.warp_in_group * WARP_ROWS + lane // 8 % 2 * 8
            sides = (column + lane % 8, row) if turned else (row + lane % 8, column)
            return self._staged_at(stage, *sides)

        whole, rest = columns // 16, columns % 16
        if whole:
            with w.unrolled("matrix", whole) as matrix:
                to = place(matrix * 16 + lane // 16 * 8)
                w.emit(StoreMatrix(staged, to, output, (matrix * 8,), 4, turned))
        if rest:
            w.emit(StoreMatrix(staged, place(index(whole * 16)), output, (index(whole * 8),), 2, turned))

    def _store_by_tma(self, result: Result, at: Mapping[str, Expr], columns: int, stage: int) -> None:
        w, staged = self.w, self.stages[columns]
        box = result_box(self.gemm, result)
        assert box is not None
        if self._store_lines(box, at, columns, stage):
            return
        whole = self._exists(at)
        if ROW_END in at:
            whole = at["m"] + WGMMA_M <= at[ROW_END]
            with w.when(at["m"] + WGMMA_M > at[ROW_END]):
                self._store_vectors(result, at, columns, stage)
        with w.when(self.elected):
            with w.when(whole):
                parts = WARPGROUP_WARPS if self._interleaves else 1
                for warp in range(parts):
                    place = {**at, "m": at["m"] + warp * self.s.atoms_m * WARP_ROWS} if warp else at
                    corner = tuple(vector_at(i, place, "n", 1) for i in box.indices)
                    source = self._staged_at(stage, index(warp * WARP_ROWS), index(0))
                    extents = box.extents(columns, parts)
                    w.emit(TmaStore(box.tensor, corner, staged, source, extents))
            w.emit(TmaStoreCommit())  # a group for each subtile, so that waits know how many are under way

    def _exists(self, at: Mapping[str, Expr]) -> Expr | None:
        """Return whether a tile is one of the result, where its place does not say so: images of one patch, the only
        tile, have no index that goes on with the tiles of a cluster. None elsewhere, since TMA stores nothing outside
        of a tensor."""
        window, rows = self.gemm.window, self.gemm.m.extent
        single = window is not None and bool(window.patch) and rows <= prod(window.patch)
        return at["m"] < rows if single and self.s.tile_m * self.s.cluster_m > rows else None

    def _store_lines(self, box: ResultBox, at: Mapping[str, Expr], columns: int, stage: int) -> bool:
        """Store a subtile that has all columns of a result as whole lines of memory. False where it has none."""
        lines = line_box(self.gemm, box, columns)
        if lines is None or ROW_END in at or self._interleaves:
            return False
        w, here, staged = self.w, at["m"] * columns // lines.tensor.shape[-1], self.stages[columns]
        with w.when(self.elected):
            with w.when(at["n"] < self.gemm.n.extent):  # tiles of a cluster may lie beside the result
                source = self._staged_at(stage, index(0), index(0))
                w.emit(TmaStore(lines.tensor, (here, index(0)), staged, source, lines.rows))
            w.emit(TmaStoreCommit())
        return True

    def _store_rows(self, result: Result, at: Mapping[str, Expr], columns: int) -> None:
        """Each warp stores the 16 rows that it staged. Neighbouring lanes store neighbours, so that stores coalesce."""
        w, gemm, s, staged = self.w, self.gemm, self.s, self.stages[columns]
        width = 2 if gemm.n.extent % 2 == 0 else 1
        many = self.several_tiles and s.atoms_m * s.tile_n // 2 <= FEW_ACCUMULATORS
        at_once = WARP_ROWS if many else WARP_ROWS // 4
        with w.loop("rows", WARP_ROWS // at_once) as rows, w.unrolled("row", at_once) as row:
            staged_row = self.warp_in_group * WARP_ROWS + rows * at_once + row
            m = at["m"] + staged_row
            vectors = -(-columns // (WARP_LANES * width))
            with w.when(*self._rows_inside(at, m)), w.unrolled("vector", vectors) as vector:
                column = (vector * WARP_LANES + self.lane) * width
                n = at["n"] + column
                there = column < columns if columns % (WARP_LANES * width) else None
                with w.when(n < gemm.n.extent, there, _existing(result, {**at, "m": m, "n": n})):
                    source = (self.warpgroup, index(0), staged_row)
                    if width > 1:
                        value = Load(staged, (*(Broadcast(i, width) for i in source), Ramp(column, 1, width)))
                    else:
                        value = Load(staged, (*source, column))
                    indices = [vector_at(i, {**at, "m": m, "n": n}, "n", width) for i in result.indices]
                    w.store(result.tensor, [i.value if isinstance(i, Broadcast) else i for i in indices], value)

    def _store_staged_pixels(self, result: Result, at: Mapping[str, Expr], columns: int) -> None:
        """Each warp stores the 16 pixels that it staged, by vectors of 16 bytes along the last dimension."""
        w, gemm, staged = self.w, self.gemm, self.stages[columns]
        width = VECTOR_BYTES // result.tensor.dtype.bytes
        of_column = WARP_ROWS // width
        with w.unrolled("pixel_vector", -(-columns * of_column // WARP_LANES)) as number:
            vector = number * WARP_LANES + self.lane
            row, column = self.warp_in_group * WARP_ROWS + vector % of_column * width, vector // of_column
            m, n = at["m"] + row, at["n"] + column
            there = column < columns if columns * of_column % WARP_LANES else None
            with w.when(*self._rows_inside(at, m), n < gemm.n.extent, there):
                source = (Broadcast(i, width) for i in (self.warpgroup, index(0), column))
                value = Load(staged, (*source, Ramp(row, 1, width)))
                *outer, last = (vector_at(i, {**at, "m": m, "n": n}, "n", 1) for i in result.indices)
                w.store(result.tensor, (*(Broadcast(i, width) for i in outer), Ramp(last, 1, width)), value)

    def _store_vectors(self, result: Result, at: Mapping[str, Expr], columns: int, stage: int) -> None:
        """Each warp stores those of the 16 rows that it staged that belong to the group of the tile, by vectors of 16
        bytes."""
        w, gemm, staged = self.w, self.gemm, self.stages[columns]
        width = VECTOR_BYTES // result.tensor.dtype.bytes
        of_row = columns // width
        with w.unrolled("row_vector", -(-WARP_ROWS * of_row // WARP_LANES)) as number:
            vector = number * WARP_LANES + self.lane
            row, column = self.warp_in_group * WARP_ROWS + vector // of_row, vector % of_row * width
            m, n = at["m"] + row, at["n"] + column
            there = vector < WARP_ROWS * of_row if WARP_ROWS * of_row % WARP_LANES else None
            with w.when(*self._rows_inside(at, m), n < gemm.n.extent, there):
                source = (Broadcast(i, width) for i in (self.warpgroup, index(stage), row))
                value = Load(staged, (*source, Ramp(column, 1, width)))
                indices = [vector_at(i, {**at, "m": m, "n": n}, "n", width) for i in result.indices]
                w.store(result.tensor, indices, value)


def _existing(result: Result, at: Mapping[str, Expr]) -> Expr | None:
    """Return the condition on which a result has an element at ``at``; None where it has all."""
    inside = [vector_at(i, at, "n", 1) for i in result.inside]
    return conjunction(*inside)


def spare_registers(gemm: Gemm) -> int:
    """Registers of a consumer thread besides its accumulators, roughly, those of the sources included."""
    values = [r.value.value if isinstance(r.value, Cast) else r.value for r in gemm.results]
    plain = all(isinstance(value, Load) for value in values)
    return SPARE_REGISTERS + source_registers(gemm) + (0 if plain else VALUE_REGISTERS)


def source_registers(gemm: Gemm) -> int:
    """Registers of a thread for the sources of a subtile."""
    columns = subtile_columns(gemm)
    return max(sum(_registers(load, columns) for load in _sources(gemm, r)) for r in gemm.results)


def _sources(gemm: Gemm, result: Result) -> list[Load]:
    """Return what is read along ``n`` besides the accumulators, and may be loaded ahead: no select says where it
    may."""
    if any(isinstance(e, Select) for e in walk(result.value)):
        return []
    loads = [e for e in loads_of(result.value) if e.buffer.name not in gemm.accumulators]
    return list(dict.fromkeys(e for e in loads if "n" in free_variables(e)))


def _has_pairs(result: Result, columns: int) -> bool:
    """Return whether an even column and the next one are neighbours in a result: the last index is the last digit of
    ``n``, and no other one depends on that."""
    base = result.last_digit
    return base > 0 and base % 2 == 0 and columns % 2 == 0 and all(_is_quotient(i, base) for i in result.indices[:-1])


def _is_quotient(i: Expr, unit: int) -> bool:
    """Return whether ``i`` depends on ``n`` by ``n // unit`` alone."""
    if isinstance(i, Binary) and i.op is BinaryOp.FLOORDIV and i.a == Var("n"):
        return isinstance(i.b, Const) and int(i.b.value) % unit == 0
    return i != Var("n") and all(_is_quotient(c, unit) for c in i.children)


def _halves(load: Expr) -> int:
    """Return how often a pair of columns is loaded for 16 rows: for each half of them unless it is the same for all
    rows."""
    return 2 if "m" in free_variables(load) else 1


def _registers(load: Load, columns: int) -> int:
    """Registers for what is loaded for a subtile of so many columns."""
    return -(-columns // 4 * _halves(load) * load.buffer.dtype.bytes // 4)
