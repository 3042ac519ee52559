"""Writes the kernel of ``cuda_attention_mma``.

A warp has 16 queries of a head and a share of its keys. Both products are mma.sync with the queries as rows; their
results lie in the registers of a warp as those of wgmma do, so that weights become operands as they are.

    for each block of keys, from the last one of the share on:
        load K and V of the block
        scores = Q K;  weights of the block (online softmax);  sums = decay * sums + weights V
    store sums, maximum and sum of weights
    a second launch combines the shares

In each product, which places a fragment has along what is summed does not matter as long as both operands have the same
ones, and which columns it has does not matter for what is stored in the end. So a lane takes neighbouring elements of a
key for the first product, and for the second one neighbouring columns of four rows of V.
"""

from collections.abc import Callable, Mapping, Sequence

from ....core.dtypes import float32
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import WARP_LANES, Broadcast, Expr, Load, Ramp, Var, const, index, minimum
from ....ir.gpu.bulk_copy import Prefetch
from ....ir.gpu.mma import Mma
from ....ir.stmt import Kernel
from ....te.functions import cast
from ...loop_nest.nest import KERNEL_NAME
from ...tile.contiguous import contiguous_vector
from ...tile.names import FreshNameWriter
from ...tile.stage_body import scalar_at, vector_at
from ..attention.partials import AttentionPartials
from ..attention.roles import AttentionRoles
from ..attention.softmax import OnlineSoftmax, row_of
from ..attention.tile_scheduler import AttentionTileScheduler
from ..block_reduce import QUAD
from ..launch_axes import warp_axes
from ..skinny.mma_tiles import mma_atom_of
from ..streamed_operand import StreamedOperand
from .sizes import COLUMNS, KEYS, TILE_Q, AttentionMmaSizes, StreamedKeys

_PLACES = 4
"""How many places of what is summed a lane has in one fragment."""
_STORED = 4
"""How many neighbouring sums a lane stores at once, at most."""
_KEY = "key#"
"""The variable that counts the rows of V that a lane has of 16. No variable of a kernel has this name."""
_RowAt = Callable[[Expr], Mapping[str, Expr]]
"""The number of one of a lane's rows of a block -> its place: axis -> index."""


def lower_attention_mma(a: StreamedKeys, s: AttentionMmaSizes[int]) -> Kernel:
    """Return the kernel of one setting."""
    return _AttentionMmaWriter(a, s).kernel()


class _AttentionMmaWriter:
    def __init__(self, a: StreamedKeys, s: AttentionMmaSizes[int]) -> None:
        self.a, self.s, self.p, self.dtype = a, s, a.stored.attention, a.stored.dtype
        atom = mma_atom_of(self.dtype)
        assert atom is not None
        self.atom = atom.name
        self.w = FreshNameWriter(self.p.names)

    def kernel(self) -> Kernel:
        p, s, w = self.p, self.s, self.w
        scheduler = AttentionTileScheduler(p, s)
        partials = AttentionPartials(w, scheduler)
        axes = warp_axes(s.blocks, s.warps_n, block="cta")
        with w.launch(KERNEL_NAME, axes, min_blocks=1, evict_first=self._read_once()) as (cta, warp, lane):
            self.lane = lane
            roles = AttentionRoles(index(0), lane, 1)
            self.softmax = OnlineSoftmax(w, p, roles, TILE_Q, s.tile_kv, {})
            number = cta * s.warps_n + warp
            rank, at = number % s.split_kv, scheduler.origin(number // s.split_kv)
            blocks = scheduler.share(scheduler.key_blocks(at), rank)
            q = self._load_q(at)
            self.sums = w.allocate("sums", (p.d.extent // 2,), float32, MemoryScope.REGISTER)
            self._zero("zeroed", self.sums)
            self.softmax.start({**at, "n": blocks.last * s.tile_kv}, rank)
            with w.loop("block", scheduler.most_steps) as step, w.when(step < blocks.steps):
                if s.prefetched_blocks:
                    with w.when(step + s.prefetched_blocks < blocks.steps):
                        self._prefetch({**at, "n": (blocks.last - step - s.prefetched_blocks) * s.tile_kv})
                self._block(q, {**at, "n": (blocks.last - step) * s.tile_kv})
            self._store(partials, at, rank)
        partials.write_combine()
        return Kernel(KERNEL_NAME, p.inputs, p.outputs, partials.buffers, w.finish())

    def _read_once(self) -> tuple[str, ...]:
        """Return the tensors of keys and values whose elements one warp reads alone."""
        return () if self.s.q_tiles > 1 else self.p.of_one_head(self.a.key.load, self.a.v.load)

    def _zero(self, name: str, buffer: Buffer) -> None:
        with self.w.unrolled(name, buffer.shape[0]) as element:
            self.w.store(buffer, (element,), const(0.0, float32))

    def _load_q(self, at: Mapping[str, Expr]) -> Buffer:
        """Return the fragments of the queries: (vectors of four lanes along k, elements)."""
        w, p, vector = self.w, self.p, self.a.key.vector
        q = w.allocate("q", (self.a.key_chunks, 2 * vector), self.dtype, MemoryScope.REGISTER)
        with (
            w.unrolled("q_chunk", self.a.key_chunks) as chunk,
            w.unrolled("q_half", 2) as half,
            w.unrolled("q_pair", vector // 2) as pair,
        ):
            m = minimum(at["m"] + row_of(self.softmax.roles, half), p.last_m)
            here = {**at, "m": m, "k": (chunk * QUAD + self.lane % QUAD) * vector + pair * 2}
            value = vector_at(self.a.stored.q, here, "k", 2)
            w.store(q, contiguous_vector((chunk, pair * _PLACES + half * 2), 2), value)
        return q

    def _prefetch(self, at: Mapping[str, Expr]) -> None:
        """Prefetch the rows of K and V of the block at ``at`` into L2, each lane its own."""
        w, p, a, rows = self.w, self.p, self.a, self.s.tile_kv
        for operand, extent in ((a.key, p.k.extent), (a.v, p.d.extent)):
            with w.unrolled("prefetched_row", -(-rows // WARP_LANES)) as turn:
                row = turn * WARP_LANES + self.lane
                with w.when(row < rows if rows % WARP_LANES else None):
                    first = operand.first_element(self._key(at, row), index(0))
                    w.emit(Prefetch(operand.load.buffer, first, extent // operand.places))

    def _block(self, q: Buffer, at: Mapping[str, Expr]) -> None:
        """Go through the block of keys at ``at``."""
        w, s, softmax, a, lane = self.w, self.s, self.softmax, self.a, self.lane
        groups = s.tile_kv // (2 * KEYS)

        def key_at(atom: Expr) -> Mapping[str, Expr]:
            return self._key(at, atom * KEYS + lane // QUAD)

        def row_at(row: Expr) -> Mapping[str, Expr]:
            """Return where one of a lane's rows of V is: its group of 16 keys, and which of four of these."""
            group, own = row // _PLACES, row % _PLACES
            return self._key(at, group * (2 * KEYS) + own // 2 * KEYS + lane % QUAD * 2 + own % 2)

        keys, scales = self._load("key", a.key, s.tile_kv // KEYS, a.key_chunks, QUAD, lane % QUAD, key_at)
        rows, row_scales = self._load("v", a.v, groups * _PLACES, a.v_chunks, COLUMNS, lane // QUAD, row_at)
        scores = w.allocate("scores", (s.tile_kv // 2,), float32, MemoryScope.REGISTER)
        self._zero("zero_scores", scores)
        with w.unrolled("key_atom", s.tile_kv // KEYS) as atom, w.unrolled("key_chunk", a.key_chunks) as chunk:
            k = w.allocate("k", (a.key.vector,), self.dtype, MemoryScope.REGISTER)
            first, held = (chunk * QUAD + lane % QUAD) * a.key.vector, [Load(e, (atom, chunk)) for e in scales]
            with w.unrolled("key_pair", a.key.vector // 2) as pair:
                raw = Load(keys, (atom, chunk, index(0)))
                value = a.key.along_vector(key_at(atom), first, pair * 2, raw, held)
                w.store(k, contiguous_vector((pair * 2,), 2), cast(value, self.dtype))
            with w.unrolled("key_place", a.key.vector // _PLACES) as place:
                w.emit(Mma(self.atom, scores, (atom * 4,), q, (chunk, place * 8), k, (place * _PLACES,)))
        softmax.weigh(scores, at, masked=softmax.masks_the_last_block)
        if a.stored.factor is not None:
            self._multiply(scores, a.stored.factor, at)
        softmax.rescale(self.sums)
        weights = w.allocate("weights", (s.tile_kv // 2,), self.dtype, MemoryScope.REGISTER)
        softmax.round(scores, [weights])
        with (
            w.unrolled("group", groups) as group,
            w.unrolled("v_chunk", a.v_chunks) as chunk,
            w.unrolled("v_place", a.v.vector) as place,
        ):
            v = w.allocate("v", (_PLACES,), self.dtype, MemoryScope.REGISTER)
            first = (chunk * COLUMNS + lane // QUAD) * a.v.vector
            with w.unrolled("v_half", 2) as half:
                row = group * _PLACES + Var(_KEY)
                raw, held = Load(rows, (row, chunk, index(0))), [Load(e, (row, chunk)) for e in row_scales]
                here = {**row_at(row), _KEY: half * 2}
                value = a.v.across_vectors(here, first, place, _KEY, raw, held)
                w.store(v, contiguous_vector((half * 2,), 2), cast(value, self.dtype))
            to = ((chunk * a.v.vector + place) * 4,)
            w.emit(Mma(self.atom, self.sums, to, weights, (group * 8,), v, (index(0),)))

    def _key(self, at: Mapping[str, Expr], behind: Expr) -> Mapping[str, Expr]:
        """Return where a key of a block is; the last one for those behind it, which count nothing."""
        return {**at, "n": minimum(at["n"] + behind, self.p.last_n)}

    def _load(
        self, name: str, operand: StreamedOperand, rows: int, chunks: int, lanes: int, lane: Expr, row_at: _RowAt
    ) -> tuple[Buffer, list[Buffer]]:
        """Load vectors of ``rows`` rows, ``chunks`` times those of ``lanes`` lanes, of which this is ``lane``: what is
        streamed, and what is loaded once for each vector."""
        w = self.w
        shape = (rows, chunks)
        raw = w.allocate(name, (*shape, operand.elements), operand.load.dtype, MemoryScope.REGISTER)
        once = [w.allocate(f"{name}_once", shape, e.dtype, MemoryScope.REGISTER) for e in operand.once]
        with w.unrolled(f"{name}_row", rows) as row, w.unrolled(f"{name}_part", chunks) as chunk:
            vector, at = chunk * lanes + lane, row_at(row)
            source = contiguous_vector(operand.first_element(at, vector), operand.elements)
            w.store(raw, contiguous_vector((row, chunk, index(0)), operand.elements), Load(operand.load.buffer, source))
            for held, load in zip(once, operand.once, strict=True):
                w.store(held, (row, chunk), operand.once_at(load, at, vector * operand.vector))
        return raw, once

    def _multiply(self, weights: Buffer, factor: Expr, at: Mapping[str, Expr]) -> None:
        """Multiply the weights of the block at ``at`` with a factor of their keys."""
        w = self.w
        with w.unrolled("scaled", self.s.tile_kv // KEYS) as pair, w.unrolled("scaled_column", 2) as column:
            scale = w.allocate("scale", (1,), float32, MemoryScope.REGISTER)
            here = self._key(at, pair * KEYS + self.lane % QUAD * 2 + column)
            w.store(scale, (index(0),), cast(scalar_at(factor, here), float32))
            with w.unrolled("scaled_half", 2) as half:
                place = (pair * 4 + half * 2 + column,)
                w.store(weights, place, Load(weights, place) * Load(scale, (index(0),)))

    def _store(self, partials: AttentionPartials, at: Mapping[str, Expr], rank: Expr) -> None:
        """Store what a thread holds of its rows."""
        w, p, lane, vector = self.w, self.p, self.lane, self.a.v.vector
        width = min(_STORED, vector)
        partials.store_rows(self.softmax, at, rank)
        with (
            w.unrolled("partial_half", 2) as half,
            w.unrolled("partial_column", 2) as column,
            w.unrolled("partial_chunk", self.a.v_chunks) as chunk,
            w.unrolled("partial_part", vector // width) as part,
        ):
            m = at["m"] + row_of(self.softmax.roles, half)
            first = (chunk * COLUMNS + lane % QUAD * 2 + column) * vector + part * width
            held = ((chunk * vector + part * width) * 4 + half * 2 + column, 4, width)
            row: Sequence[Expr] = (rank, *(at[axis.name] for axis in p.batch), m)
            with w.when(m < p.m_end):
                to = (*(Broadcast(i, width) for i in row), Ramp(first, 1, width))
                w.store(partials.sums, to, Load(self.sums, (Ramp(*held),)))
