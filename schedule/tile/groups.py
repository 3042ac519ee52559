"""Products of up to 64 rows on the matrix units of warpgroups, which read both operands out of shared memory.

A block's threads together fill a ring of stages with 64 rows of weights for each warpgroup along ``n``, and all tokens;
warpgroups along ``k`` take different parts of a stage, blocks of a cluster different parts of the whole ``k``. Partial
sums meet in shared memory.
"""

from dataclasses import dataclass

from ...core.dtypes import float32
from ...ir.buffer import Buffer, Layout, Scope
from ...ir.expr import Compare, CompareOp, Expr, Load, const, index, logical_and, minimum
from ...ir.gpu import (
    GROUP_LANES,
    GROUP_ROWS,
    GROUP_RUN,
    GROUP_SWIZZLE,
    AwaitCopies,
    AwaitGroupMma,
    CommitCopies,
    CopyAsync,
    FenceAsync,
    GroupMma,
)
from ...ir.rewrite import substitute
from ...ir.stmt import HardwareAxis, Kernel, LoopKind
from .naming import NamingWriter
from .partials import Share, add_up, partial_sums
from .product import Product
from .skinny import COLUMNS, PIECE, can_lower

UNROLLED = LoopKind.UNROLLED


@dataclass(frozen=True, slots=True)
class GroupSetting:
    """``groups_n``, ``groups_k``: warpgroups of a block along each. ``stages``: how many the ring holds, each 64 places
    of ``k`` for every warpgroup along it. ``split``: blocks of a cluster, which share out ``k``. ``resident``: blocks
    meant for a multiprocessor at once."""

    groups_n: int
    groups_k: int
    stages: int
    split: int
    resident: int

    @property
    def threads(self) -> int:
        return self.groups_n * self.groups_k * GROUP_LANES

    @property
    def block_n(self) -> int:
        """Outputs ``n`` of a block."""
        return self.groups_n * GROUP_ROWS

    def steps(self, k: int) -> int:
        """Stages that every block works through."""
        return -(-k // (self.split * self.groups_k * GROUP_RUN))


def can_lower_groups(p: Product) -> bool:
    """Whether matrix instructions take the operands, and both lie along ``k``."""
    return can_lower(p) and p.weights.k == 1


def lower_groups(p: Product, name: str, s: GroupSetting) -> Kernel:
    """The kernel of one setting."""
    return _Program(p, name, s).kernel()


class _Program:
    def __init__(self, p: Product, name: str, s: GroupSetting) -> None:
        assert p.weights.load is not None and p.tokens.load is not None
        self.p, self.s, self.name = p, s, name
        self.weights, self.tokens = p.weights.load, p.tokens.load
        self.token_rows = -(-p.m.extent // COLUMNS) * COLUMNS
        self.steps = s.steps(p.k.extent)
        self.w = NamingWriter(p.names)

    def kernel(self) -> Kernel:
        p, s, w = self.p, self.s, self.w
        bounds = [
            ("block", -(-p.n.extent // s.block_n), HardwareAxis.GRID_X),
            ("rank", s.split, HardwareAxis.CLUSTER),
            ("thread", s.threads, HardwareAxis.THREAD),
        ]
        if s.split == 1:
            del bounds[1]
        with w.launch(self.name, bounds, min_blocks=s.resident) as axes:
            self.block, self.thread = axes[0], axes[-1]
            self.rank: Expr = axes[1] if s.split > 1 else index(0)
            group = self.thread // GROUP_LANES
            self.group_n = group // s.groups_k if s.groups_n > 1 else index(0)
            self.group_k = group % s.groups_k if s.groups_k > 1 else index(0)
            sums = w.allocate("sums", (self.token_rows // 2,), float32, Scope.REGISTER)
            with w.scope():
                self._multiply(sums)
            with w.scope():
                self._finish(sums)
        return Kernel(self.name, p.inputs, tuple(r.tensor for r in p.results), (), w.finish())

    def _ring(self, name: str, rows: int) -> Buffer:
        """(stage, part along k, row, column): rows as the matrix units take them."""
        s = self.s
        strides = (s.groups_k * rows * GROUP_RUN, rows * GROUP_RUN, GROUP_RUN, 1)
        shape = (s.stages, s.groups_k, rows, GROUP_RUN)
        return self.w.allocate(name, shape, self.weights.buffer.dtype, Scope.SHARED, Layout(strides, GROUP_SWIZZLE))

    def _multiply(self, sums: Buffer) -> None:
        s, w = self.s, self.w
        weights, tokens = self._ring("weight_ring", s.block_n), self._ring("token_ring", self.token_rows)
        ahead = s.stages - 1
        with w.loop("early", ahead, UNROLLED) as early:
            with w.when(early < self.steps if ahead > self.steps else None):
                self._copy(weights, tokens, early, early)
            w.emit(CommitCopies())
        with w.loop("zero", sums.shape[0], UNROLLED) as i:
            w.store(sums, (i,), const(0.0, float32))
        with w.loop("step", self.steps) as step:
            w.emit(AwaitCopies(ahead - 1))
            w.emit(FenceAsync())
            w.barrier()
            if self.steps > ahead:
                with w.when(step + ahead < self.steps):
                    self._copy(weights, tokens, step + ahead, (step + ahead) % s.stages)
            w.emit(CommitCopies())
            part, zero = (step % s.stages, self.group_k), index(0)
            rows = (*part, self.group_n * GROUP_ROWS, zero)
            w.emit(GroupMma(sums, (zero,), weights, rows, tokens, (*part, zero, zero), self.token_rows, GROUP_RUN))
            w.emit(AwaitGroupMma(0))
        w.emit(AwaitCopies(0))
        w.barrier()

    def _copy(self, weights: Buffer, tokens: Buffer, step: Expr, stage: Expr) -> None:
        """Start the copies of one step."""
        k = (self.rank * self.steps + step) * (self.s.groups_k * GROUP_RUN)
        self._copy_tile("w", self.weights, weights, stage, ("n", self.block * self.s.block_n), k)
        self._copy_tile("x", self.tokens, tokens, stage, ("m", index(0)), k)

    def _copy_tile(self, tag: str, load: Load, ring: Buffer, stage: Expr, outer: tuple[str, Expr], k: Expr) -> None:
        """What lies outside of the tensor along ``k`` or ``m`` becomes zeros; along ``n`` anything that exists does."""
        w, s, rows = self.w, self.s, ring.shape[2]
        pieces = GROUP_RUN // PIECE
        items = rows * s.groups_k * pieces
        with w.loop(f"{tag}_copy", -(-items // s.threads), UNROLLED) as turn:
            item = turn * s.threads + self.thread
            row, column = item // (pieces * s.groups_k), (item % pieces) * PIECE
            part = item // pieces % s.groups_k if s.groups_k > 1 else index(0)
            at = {outer[0]: outer[1] + row, "k": k + part * GROUP_RUN + column}
            mask = self._inside(at)
            with w.when(Compare(CompareOp.LT, row, index(rows)) if items % s.threads else None):
                indices = tuple(substitute(i, at) for i in load.indices)
                w.emit(CopyAsync(ring, (stage, part, row, column), load.buffer, indices, PIECE, mask))

    def _inside(self, at: dict[str, Expr]) -> Expr | None:
        """The condition that a piece lies in its tensor; along ``n`` the place is moved inside instead."""
        p, s = self.p, self.s
        terms = []
        if "n" in at and p.n.extent % s.block_n:
            at["n"] = minimum(at["n"], index(p.n.extent - 1))
        if p.k.extent % (s.split * s.groups_k * GROUP_RUN):
            terms.append(Compare(CompareOp.LT, at["k"], index(p.k.extent)))
        if "m" in at and p.m.extent % COLUMNS:
            terms.append(Compare(CompareOp.LT, at["m"], index(p.m.extent)))
        return logical_and(*terms) if terms else None

    def _finish(self, sums: Buffer) -> None:
        p, s, w = self.p, self.s, self.w
        partials = partial_sums(w, p, s.groups_k, s.block_n, float32)
        lane, warp = self.thread % 32, self.thread // 32 % 4
        with (
            w.loop("sum_tile", self.token_rows // COLUMNS, UNROLLED) as j,
            w.loop("sum_half", 2, UNROLLED) as h,
            w.loop("sum_low", 2, UNROLLED) as e,
        ):
            m = j * COLUMNS + (lane % 4) * 2 + e
            n = self.group_n * GROUP_ROWS + warp * 16 + h * 8 + lane // 4
            with w.when(Compare(CompareOp.LT, m, index(p.m.extent)) if p.m.extent % COLUMNS else None):
                w.store(partials, (self.group_k, m, n), Load(sums, (j * 4 + h * 2 + e,)))
        add_up(w, Share(p, self.block, s.block_n, self.rank, s.split, self.thread, s.threads), partials, s.groups_k)
