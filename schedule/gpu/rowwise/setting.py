"""How rows are shared out among threads and blocks.

Columns are taken in vectors. A row that is no whole number of vectors is cut at the multiples of a vector in memory:
whole vectors from the first of them on, as many in every row, and the few columns before and after singly ("edges").
"""

from dataclasses import dataclass

REGISTERS, SPLIT, QUEUE, MEMORY = "registers", "split", "queue", "memory"
"""Where a row stays between the passes over it: in registers, partly there and partly in shared memory, in a queue in
shared memory that the next rows already stand in, or nowhere: it is read again."""


@dataclass(frozen=True, slots=True)
class RowSetting:
    """``vector``: elements of an access. ``lanes``: threads of one row in a block. ``teams``: rows of a block at once.
    ``cluster``: blocks of a row. ``hold``: REGISTERS, SPLIT, QUEUE or MEMORY. ``unroll``: vectors of a thread at a
    time, from memory. ``slots``: vectors of a thread in shared memory. ``blocks``: those of the launch where each takes
    rows in turn (with a queue). ``early``: for how many of a thread's vectors what stands beside the rows is read
    before the row is reduced (with a queue: before all rows). ``resident``: blocks that a multiprocessor must have room
    for (0: no matter). ``ahead``: how many blocks there is room for at once: the first, which ask for their rows ahead
    of the wait for earlier launches (0: none do). ``apart``: how many blocks later the one comes that a block asks for
    (0: for none)."""

    vector: int
    lanes: int
    teams: int
    cluster: int = 1
    hold: str = REGISTERS
    unroll: int = 4
    slots: int = 0
    blocks: int = 0
    early: int = 0
    resident: int = 0
    ahead: int = 0
    apart: int = 0

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.lanes * self.teams


@dataclass(frozen=True, slots=True)
class RowShape:
    """How a row is shared out: ``vectors`` whole vectors of it, ``share`` of them for each block of its cluster,
    ``chunks`` for each thread; ``edges`` single columns for the first threads."""

    columns: int
    vector: int
    lanes: int
    cluster: int

    @property
    def edges(self) -> int:
        return self.columns - self.vectors * self.vector

    @property
    def vectors(self) -> int:
        whole = self.columns % self.vector == 0
        return self.columns // self.vector if whole else (self.columns - self.vector + 1) // self.vector

    @property
    def share(self) -> int:
        return -(-self.vectors // self.cluster)

    @property
    def chunks(self) -> int:
        return -(-self.share // self.lanes)
