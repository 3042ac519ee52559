"""The launch of a row form: which block takes which rows, and where their columns stay."""

from collections.abc import Mapping
from dataclasses import dataclass

from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import Compare, CompareOp, Expr, Load, Ramp, Select, index, logical_and, minimum
from ....ir.gpu.async_copy import CopyAsync, CopyAsyncCommit, CopyAsyncWait
from ....ir.gpu.barrier import SyncScope
from ....ir.stmt import HardwareAxis, Kernel, LoopKind
from ....te.workload import Workload
from ...loop_nest.nest import KERNEL_NAME
from ...problems.rowwise import RowForm
from ...tile.contiguous import run_of
from ...tile.delinearize import digits
from ..l2_prefetch import L2Prefetch
from .passes import Chunk, Row, RowThread
from .setting import QUEUE, REGISTERS, SPLIT, RowSetting


def row_kernel(workload: Workload, form: RowForm, setting: RowSetting) -> Kernel:
    """The kernel of one setting. The setting must be legal (see the sketch)."""
    do = RowThread(workload, form, setting)
    w, rows = do.w, form.row_count
    queued = setting.hold == QUEUE
    grid = setting.blocks // setting.cluster if queued else -(-rows // setting.teams)
    bounds = [(do.name("block"), grid, HardwareAxis.GRID_X)]
    if setting.cluster > 1:
        bounds.append((do.name("rank"), setting.cluster, HardwareAxis.CLUSTER))
    bounds.append((do.name("t"), setting.threads, HardwareAxis.THREAD))
    # What clusters write the cache may keep: 2 % faster on an H200.
    written = [c.tensor for c in form.wide] if setting.cluster == 1 else []
    evict_first = [b.name for b in (*form.held, *written)]
    with w.launch(KERNEL_NAME, bounds, min_blocks=setting.resident, evict_first=evict_first) as variables:
        asks = _Rows(do, variables[0], grid)
        if setting.ahead:
            asks.own()
        if queued:
            _queue(do, variables[0], grid)
        else:
            _once(do, variables[0], asks)
    return Kernel(KERNEL_NAME, workload.inputs, workload.output_buffers, (), w.finish())


@dataclass(frozen=True, slots=True)
class _Rows:
    """Asks for rows before it is their turn (see ``ahead``). ``blocks``: of the launch."""

    do: RowThread
    block: Expr
    blocks: int

    @property
    def ask(self) -> L2Prefetch:
        s = self.do.setting
        return L2Prefetch(self.do.w, (self.do.thread, s.threads), (self.block, self.blocks), s.ahead)

    def own(self) -> None:
        """The rows of this block, and what stands beside all rows."""
        for n, tensor in enumerate(self.do.form.held):
            self.ask.own(self.do.name(f"asked{n}"), tensor, self.do.setting.teams, self.run, self.place)
        for n, buffer in enumerate(dict.fromkeys(load.buffer for load in self.do.form.beside)):
            self.ask.all(self.do.name(f"beside_asked{n}"), buffer)

    def following(self) -> None:
        """The rows of the block that comes ``apart`` blocks later."""
        for n, tensor in enumerate(self.do.form.held):
            name, s = self.do.name(f"following{n}"), self.do.setting
            self.ask.following(name, tensor, s.teams, self.run, self.place, s.apart)

    @property
    def run(self) -> int:
        return self.do.shape.vectors * self.do.setting.vector

    def place(self, block: Expr, team: Expr) -> tuple[Expr, ...]:
        row = Row(block * self.do.setting.teams + team, None)
        return (*self.do.rows_at(row), *digits(self.do.first_vector(row), self.do.form.columns))


def _once(do: RowThread, block: Expr, asks: _Rows) -> None:
    """A block takes ``teams`` rows and is done."""
    s, rows = do.setting, do.form.row_count
    at = block * s.teams + do.team.number if s.teams > 1 else block
    row = Row(at, None)
    if rows % s.teams:
        row = Row(minimum(at, index(rows - 1)), at < rows)
    scratch = do.scratches(1)
    do.declare()
    if s.hold == REGISTERS:
        with do.chunks(row, "load") as chunk:
            do.load_chunk(row, chunk)
    elif s.hold == SPLIT:
        _split(do, row)
    if s.apart:
        asks.following()
    do.load_edges(row, do.edge)
    do.load_early(row)
    if s.hold == SPLIT:
        do.w.emit(CopyAsyncWait(0))
    do.passes(row, scratch, None)


def _split(do: RowThread, row: Row) -> None:
    """The first vectors of a thread into registers, the others into shared memory of its own, all at once."""
    s, w = do.setting, do.w
    places = {
        t.name: w.allocate(do.name(f"rest{n}"), (s.slots, s.lanes * s.teams, s.vector), t.dtype, MemoryScope.SHARED)
        for n, t in enumerate(do.form.held)
    }

    def fetch(chunk: Chunk) -> None:
        for t in do.form.held:
            there = run_of((chunk.slot - do.kept, do.thread, index(0)), s.vector)
            w.store(do.raw[t.name], do.own(chunk), Load(places[t.name], there))

    with do.chunks(row, "load") as chunk:
        if do.kept:
            with w.when(chunk.slot < do.kept):
                do.load_chunk(row, chunk)
        with w.when(chunk.slot >= do.kept if do.kept else None):
            _copy(do, places, (chunk.slot - do.kept, do.thread, index(0)), row, chunk)
    w.emit(CopyAsyncCommit())
    do.fetch = fetch


def _copy(do: RowThread, to: Mapping[str, Buffer], at: tuple[Expr, ...], row: Row, chunk: Chunk) -> None:
    """Start copies of a chunk to shared memory."""
    columns = tuple(c.base if isinstance(c, Ramp) else c for c in do.run(chunk))
    for t in do.form.held:
        do.w.emit(CopyAsync(to[t.name], at, t, (*do.rows_at(row), *columns), do.setting.vector))


def _queue(do: RowThread, block: Expr, grid: int) -> None:
    """A block takes rows in turn. Each thread has a queue of its own vectors in shared memory: while it works on a row
    the vectors of the next are on their way, and every one that is done makes room for one more. Where the queue does
    not hold two rows, the first vectors of a row move to registers at once to make room for the rest of the next."""
    s, w, form, chunks = do.setting, do.w, do.form, do.shape.chunks
    rows, place = form.row_count, do.team.place
    queues = {
        t.name: w.allocate(do.name(f"queue{n}"), (s.slots, s.lanes, s.vector), t.dtype, MemoryScope.SHARED)
        for n, t in enumerate(form.held)
    }
    scratch = do.scratches(2)

    def enter(first: Expr, ahead: int, i: Expr, slot: Expr) -> None:
        """Start the copy of the vector that stands ``ahead + i`` places after the first of row ``first``."""
        row = Row(first + (i + ahead) // chunks * grid, None)
        number = (i + ahead) % chunks
        there = do.is_there(number, chunks)
        with w.when(row.at < rows if there is None else logical_and(row.at < rows, there)):
            _copy(do, queues, (slot, place, index(0)), row, Chunk(i, do.column(row, number)))
        with w.when(Compare(CompareOp.EQ, number, index(chunks - 1))):
            w.emit(CopyAsyncCommit())

    with w.loop(do.name("fill"), s.slots, LoopKind.UNROLLED) as n:
        enter(block, 0, n, n)
    do.declare()
    do.load_edges(Row(block, None), do.edge)
    do.load_early(Row(block, None))
    with w.loop(do.name("turn"), -(-rows // grid)) as turn:
        at = block + turn * grid
        with w.when(at < rows if rows % grid else None):
            row = Row(at, None)
            begin = turn * chunks % s.slots

            def slot_of(i: Expr) -> Expr:
                return Select(begin + i < s.slots, begin + i, begin + i - s.slots)

            def fetch(chunk: Chunk) -> None:
                for t in form.held:
                    there = run_of((slot_of(chunk.slot), place, index(0)), s.vector)
                    w.store(do.raw[t.name], do.own(chunk), Load(queues[t.name], there))

            def leave(i: Expr) -> None:
                with w.when(i >= do.kept if do.kept else None):
                    enter(at, s.slots, i, slot_of(i))

            w.emit(CopyAsyncWait(s.slots // chunks - 1))
            if do.kept:
                with w.loop(do.name("keep"), do.kept, LoopKind.UNROLLED) as i:
                    with w.when(do.is_there(i, chunks)):
                        fetch(Chunk(i, do.column(row, i)))
                    enter(at, s.slots, i, slot_of(i))
            do.fetch, do.leave = fetch, leave
            following = _next_edges(do, Row(at + grid, None))
            do.passes(row, scratch, turn % 2)
            _moved(do, following, do.edge)
    if s.cluster > 1:
        w.barrier(SyncScope.CLUSTER)


def _next_edges(do: RowThread, row: Row) -> dict[str, Buffer]:
    """The single columns of the next row, asked for while this one is worked on."""
    if not do.shape.edges:
        return {}
    following = {
        t.name: do.w.allocate(do.name(f"next{n}"), (), t.dtype, MemoryScope.REGISTER)
        for n, t in enumerate(do.form.held)
    }
    _moved(do, do.edge, following)
    with do.w.when(row.at < do.form.row_count):
        do.load_edges(row, following)
    return following


def _moved(do: RowThread, source: Mapping[str, Buffer], target: Mapping[str, Buffer]) -> None:
    """Single columns from one set of registers to another."""
    if source:
        with do.w.when(do.has_edge()):
            for name, edge in source.items():
                do.w.store(target[name], (), Load(edge, ()))
