"""Writes the arithmetic of long windows whose positions and taps matrix units multiply: products with Toeplitz matrices
of the taps, as in ``plane_window.toeplitz``, for windows that are too long for registers::

    D[strip, x] += sum over k of A[strip, k] * T[k, x]      A[strip, k] = position_tile[strip*tile_w + k]
                                                            T[k, x] = tap_tile[k - x]

A warp has sixteen strips of ``tile_w`` neighbouring outputs of a phase. Taps are in shared memory with zeros around
them, twice, once moved by one, so that each pair of neighbours is an aligned word of one of both. Between the strips of
a tile lie eight elements that nothing is read from, so that the rows of a matrix are in different banks.
"""

from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import WARP_LANES, Expr, Load, const, index, minimum
from ....ir.gpu.ldmatrix import LoadMatrix
from ....ir.gpu.mma import Mma
from ...problems.plane_window import BLOCK_OUTPUTS, STEP_POSITIONS, STRIPS
from ...tile.delinearize import delinearize
from ...tile.stage_body import scalar_at
from .kernel import REGISTER, LongWindowWriter, Number


class LongToeplitzWriter(LongWindowWriter):
    """Each warp multiplies the positions of sixteen strips."""

    def _allocate_accumulators(self) -> None:
        w, blocks = self.w, self.sizes.tile_w // BLOCK_OUTPUTS
        dtype = self.problem.reduction.tensor.dtype
        self.acc = w.allocate(f"{self.problem.reduction.name}_acc", (blocks, 4), dtype, REGISTER)
        with w.unrolled("p", blocks) as p, w.unrolled("e", 4) as e:
            w.store(self.acc, (p, e), const(0.0, dtype))

    def _allocate_tiles(self) -> None:
        problem, w, s = self.problem, self.w, self.sizes
        position, tap = (problem.narrowed(slots) for slots in (problem.positions, problem.taps))
        assert position is not None and tap is not None
        (slot,), taps = problem.positions, s.stage if s.stages else s.rest
        self.position_values, self.tap_value = {slot: position}, tap
        self.pitch = _up(_gapped(self._positions(taps) - 1, s.tile_w) + 1)
        extent = self.pitch * s.lanes
        self.position_tiles = {slot: w.allocate("position_tile", (extent,), position.dtype, MemoryScope.SHARED)}
        self.filters = s.lanes if problem.has_lanes(next(iter(problem.taps))) else 1
        shape = (2 * self.filters, self._tap_places(taps))
        self.tap_tile = w.allocate("tap_tile", shape, tap.dtype, MemoryScope.SHARED)
        steps, blocks = s.k_unroll // STEP_POSITIONS, s.tile_w // BLOCK_OUTPUTS
        self.fragments = w.allocate("fragments", (4 * (2 * steps + blocks - 1),), position.dtype, REGISTER)
        self.tap_pairs = w.allocate("tap_regs", (4,), tap.dtype, REGISTER)

    def _positions(self, taps: int) -> int:
        return int(self.sizes.outputs - BLOCK_OUTPUTS + STEP_POSITIONS * _steps(taps))

    @property
    def _stores_vectors(self) -> bool:
        return bool(self.sizes.lanes == 1)

    def _place_of(self, number: Expr) -> Expr:
        return self._in_phases(number, self.pitch)

    def _in_phases(self, number: Number, pitch: int) -> Number:
        """Return where element ``number`` of a tile is, each phase of which takes ``pitch`` elements."""
        lanes, tile_w = int(self.sizes.lanes), int(self.sizes.tile_w)
        if lanes == 1:
            return _gapped(number, tile_w)
        return number % lanes * pitch + _gapped(number // lanes, tile_w)

    @property
    def _strip(self) -> tuple[Expr, Expr]:
        """The phase of a warp, and the first of its strips."""
        each = self.sizes.own // STRIPS
        phase, group = delinearize(self.thread // WARP_LANES, (self.sizes.lanes, each))
        return phase, group * STRIPS

    def _tap_places(self, taps: int) -> int:
        """Return how many elements the taps of a stage take in shared memory, with zeros around them."""
        return BLOCK_OUTPUTS + STEP_POSITIONS * _steps(taps)

    def _load_taps(self, first_tap: Expr, taps: int) -> None:
        w, places, problem = self.w, self._tap_places(taps), self.problem
        with w.shared_out("k", 2 * self.filters * places, self.sizes.threads, self.thread) as number:
            filter_of, moved, place = delinearize(number, (self.filters, 2, places))
            k, to = place + moved - BLOCK_OUTPUTS, (filter_of * 2 + moved, place)
            at = {**self.row, problem.window.name: first_tap + k}
            if problem.lane_axis is not None:
                at[problem.lane_axis.name] = minimum(self.first_lane + filter_of, index(problem.phases - 1))
            w.store(self.tap_tile, to, const(0.0, self.tap_tile.dtype))
            with w.when(k >= 0, k < taps):
                w.store(self.tap_tile, to, scalar_at(self.tap_value, at))

    def _reduce_stage(self, first_tap: Expr, taps: int) -> None:
        each, steps = self.sizes.k_unroll // STEP_POSITIONS, _steps(taps)
        if steps >= each:
            with self.w.loop("k", steps // each) as chunk:
                self._multiply_steps(chunk, each)
        if steps % each:
            self._multiply_steps(index(steps // each), steps % each)

    def _multiply_steps(self, chunk: Expr, steps: int) -> None:
        """Multiply ``steps`` matrices of taps, of the ``chunk``-th ``k_unroll`` positions."""
        w, s, atom = self.w, self.sizes, self.problem.toeplitz_atom
        assert atom is not None
        (tile,), blocks = self.position_tiles.values(), s.tile_w // BLOCK_OUTPUTS
        lane, (phase, first_strip) = self.thread % WARP_LANES, self._strip
        row = (
            phase * self.pitch
            + (first_strip + lane % STRIPS) * _gapped(s.tile_w, s.tile_w)
            + chunk * _gapped(s.k_unroll, s.tile_w)
        )
        parts = 2 * steps + blocks - 1
        for part in range(0, parts, 2):
            place = row + _gapped(part * BLOCK_OUTPUTS, s.tile_w) + lane // STRIPS * BLOCK_OUTPUTS
            w.emit(LoadMatrix(self.fragments, (index(4 * part),), tile, (place,), 2 * min(2, parts - part)))
        tap_row = lane // 4 % 2 + (phase * 2 if self.filters > 1 else 0)
        first = lane % 4 * 2 - (lane // 4 + 1) // 2 * 2 + BLOCK_OUTPUTS + chunk * s.k_unroll
        for step in range(steps):
            for half in range(2):
                with w.vectorized("v", 2) as v:
                    place = first + (STEP_POSITIONS * step + BLOCK_OUTPUTS * half) + v
                    w.store(self.tap_pairs, (v + 2 * half,), Load(self.tap_tile, (tap_row, place)))
            for block in range(blocks):
                a, d = (index(4 * (block + 2 * step)),), (index(block), index(0))
                w.emit(Mma(atom.name, self.acc, d, self.fragments, a, self.tap_pairs, (index(0),)))

    def _result_place(self, number: Number) -> Number:
        return self._in_phases(number, self._result_pitch)

    @property
    def _result_pitch(self) -> int:
        return _gapped(int(self.sizes.outputs) - 1, self.sizes.tile_w) + 1

    def _write_results(self, results: Buffer) -> None:
        w, s = self.w, self.sizes
        lane, (phase, first) = self.thread % WARP_LANES, self._strip
        for block in range(s.tile_w // BLOCK_OUTPUTS):
            for half in range(2):
                strip = first + lane // 4 + half * 8
                with w.vectorized("v", 2) as v:
                    place = (
                        phase * self._result_pitch
                        + strip * _gapped(s.tile_w, s.tile_w)
                        + block * BLOCK_OUTPUTS
                        + lane % 4 * 2
                        + v
                    )
                    w.store(results, (index(0), place), Load(self.acc, (index(block), v + 2 * half)))


def _up(number: int) -> int:
    """Return how many elements a phase takes whose rows are aligned."""
    return -(-number // BLOCK_OUTPUTS) * BLOCK_OUTPUTS


def _steps(taps: int) -> int:
    """Return how many matrices of taps a stage has."""
    return -(-(taps + BLOCK_OUTPUTS - 1) // STEP_POSITIONS)


def _gapped(number: Number, tile_w: int) -> Number:
    """Return where element ``number`` of a tile is, whose strips of ``tile_w`` have gaps between them."""
    return number + number // tile_w * (BLOCK_OUTPUTS if tile_w > BLOCK_OUTPUTS else 0)
