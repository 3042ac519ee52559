"""Which settings of a tile group are legal: rules with small scopes, one sentence each."""

from math import prod

import numpy as np

from ....core.target import Target
from ....ir.rewrite import loads_of
from ...space.columns import Bools, Columns, Ints
from ...space.constraint import Constraint
from ..limits import MOST_SCRATCH_BYTES, vector_registers
from ..shared_knobs import ROWS_INSIDE
from .sizes import accumulator_registers, packed_bytes, tile_sizes
from .tile_loops import INLINE
from .tiles import COLUMNS, LoopTileAxes

REGISTER_TILE = ("vectorise", "lanes", "vectors", "rows", "planes")
"""The knobs that a register tile is made of."""


def tile_constraints(tiles: LoopTileAxes, target: Target) -> tuple[Constraint, ...]:
    """Return the rules of a tile group."""
    registers = vector_registers(target)
    rules = [
        Constraint(
            f"the accumulators of a register tile and the vectors that they are made from fit {registers} vector "
            "registers",
            REGISTER_TILE,
            lambda c: registers_of(tiles, target, c) <= registers,
        ),
        Constraint(
            "each of the vectors of a register tile has a column of the output",
            ("vectorise", "lanes", "vectors"),
            lambda c: _last_vector(c) < tiles.extent(tiles.column),
        ),
        Constraint(
            "unroll is at most the number of steps, of lanes elements each, where vectors lie along the reduction",
            ("vectorise", "lanes", "unroll"),
            lambda c: _unrolls_steps(tiles, c),
        ),
        Constraint(
            "row_tiles is 1 or less than twice the register tiles that there are along the rows",
            ("rows", "row_tiles"),
            lambda c: _is_needed(c.ints("row_tiles"), tile_sizes(tiles, c).row_count),
        ),
        Constraint(
            "column_tiles is 1 or less than twice the register tiles that there are along the columns",
            ("vectorise", "lanes", "vectors", "column_tiles"),
            lambda c: _is_needed(c.ints("column_tiles"), tile_sizes(tiles, c).column_count),
        ),
        Constraint(
            "order is rows_inside unless both row_tiles and column_tiles are above 1",
            ("order", "row_tiles", "column_tiles"),
            lambda c: c.flags("order", ROWS_INSIDE) | ((c.ints("row_tiles") > 1) & (c.ints("column_tiles") > 1)),
        ),
    ]
    if _packed_at_most(tiles) > MOST_SCRATCH_BYTES:
        rules.append(
            Constraint(
                f"the packed operand fits a thread's scratch memory of {MOST_SCRATCH_BYTES >> 20} MiB",
                (*REGISTER_TILE, "row_tiles", "column_tiles", "order", "pack"),
                lambda c: packed_bytes(tiles, c, tile_sizes(tiles, c)) * tiles.group.same_shape <= MOST_SCRATCH_BYTES,
            )
        )
    return tuple(rules)


def inline_constraint(tiles: LoopTileAxes, target: Target) -> Constraint:
    """Where padding is inlined, another group may have the most work and take the setting."""
    registers = vector_registers(target)
    return Constraint(
        f"the accumulators of the register tile that an inlined padding leaves fit {registers} vector registers",
        (*REGISTER_TILE, "padding"),
        lambda c: ~c.flags("padding", INLINE) | (accumulator_registers(tiles, target, c) <= registers),
    )


def registers_of(tiles: LoopTileAxes, target: Target, c: Columns) -> Ints:
    """Return the vector registers of a register tile, int64[n]: accumulators, and where there are several, two
    operands. Where vectors lie along the reduction, each vector of columns needs one of its own besides."""
    accumulators = accumulator_registers(tiles, target, c)
    operands = np.where(c.flags("vectorise", COLUMNS), 2, 2 + c.ints("vectors"))
    return accumulators + np.where(accumulators > 1, operands, 0)


def _last_vector(c: Columns) -> Ints:
    """Return the first column of the last vector of a register tile."""
    lanes = np.where(c.flags("vectorise", COLUMNS), c.ints("lanes"), 1)
    return (c.ints("vectors") - 1) * lanes


def _unrolls_steps(tiles: LoopTileAxes, c: Columns) -> Bools:
    longest = max((prod(a.extent for a in s.reduce_axes) for s in tiles.group.reductions), default=1)
    unroll = c.ints("unroll")
    found: Bools = (unroll == 1) | (unroll <= -(-longest // c.ints("lanes"))) | c.flags("vectorise", COLUMNS)
    return found


def _is_needed(task_tiles: Ints, count: Ints) -> Bools:
    """A task of more register tiles than there are is the same as one of fewer."""
    found: Bools = (task_tiles == 1) | (task_tiles < 2 * count)
    return found


def _packed_at_most(tiles: LoopTileAxes) -> int:
    """Return the bytes of the largest packed copy: all of a tensor, for each group that takes the same setting."""
    tensors = {load.buffer.name: load.buffer.bytes for s in tiles.group.reductions for load in loads_of(s.body)}
    return max((tensors[name] for name, _ in tiles.packable), default=0) * tiles.group.same_shape
