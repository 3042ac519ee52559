"""What ``cuda_gemm_simt`` combines for each place of k, and how long a multiprocessor takes for it."""

from collections.abc import Iterator
from dataclasses import dataclass

from ....core.dtypes import float64, int32
from ....ir.expr import Binary, BinaryOp, Cast, Compare, Const, Expr, Load, Select, Unary, UnaryOp, const, index
from ....ir.rewrite import loads_of, map_loads
from ....ir.simplify import simplify
from ....te.workload import Reducer
from ...problems.gemm import Gemm
from ...tile.accumulation import Accumulation
from ..peaks import GpuPeaks

INTEGER_LANES, SPECIAL_LANES, ISSUED_LANES = 64, 16, 128
"""How many results a multiprocessor has in a cycle of integers, comparisons, minima and maxima; of special functions
and conversions; and of all instructions together (CUDA C++ Programming Guide, "Arithmetic Instructions")."""
ONE_OPERAND = 1 / 8
"""What depends on one operand alone is computed once for a row of results of a thread, for each the part of this."""
FUNCTION = 12
"""About how many multiply-adds a function of floats and a division take besides the special function unit."""


def term_of(gemm: Gemm, a: Load, b: Load) -> Expr:
    """Return what is reduced at one place of k, of the elements ``a`` and ``b`` there."""
    if gemm.term is None:
        return a * b
    return map_loads(gemm.term, lambda load: a if load == gemm.a.body else b)


def zeros_are_neutral(gemm: Gemm) -> bool:
    """Return whether zeros in place of both operands change no accumulator."""
    if gemm.term is None:
        return True
    value = simplify(map_loads(gemm.term, lambda load: const(0, load.dtype)), {})
    return gemm.reducer is Reducer.SUM and isinstance(value, Const) and value.value == 0


@dataclass(frozen=True, slots=True)
class TermCost:
    """What the combination of one accumulator with one term takes: ``instructions`` of a thread, and ``cycles`` of a
    multiprocessor, in which its busiest unit has done them."""

    instructions: float
    cycles: float


def term_cost(gemm: Gemm, peaks: GpuPeaks) -> TermCost:
    """Return what the terms of a workload take on an NVIDIA GPU, roughly."""
    a, b = gemm.a.load, gemm.b.load
    assert a is not None and b is not None
    dtype = gemm.accumulator.dtype
    state = Load(gemm.accumulator, (index(0),) * len(gemm.accumulator.shape))
    combined = Accumulation(gemm.reducer, dtype, dtype).accumulate([state], term_of(gemm, a, b), index(0))[0]
    lanes = {
        "float32": peaks.float32_flops_per_cycle / 2,
        "float64": peaks.float64_flops_per_cycle / 2,
        "integer": INTEGER_LANES,
        "special": SPECIAL_LANES,
    }
    taken = dict.fromkeys(lanes, 0.0)
    for node in set(_operations(combined)):
        share = 1.0 if len(set(loads_of(node))) > 1 else ONE_OPERAND
        for unit, count in _instructions(node).items():
            taken[unit] += share * count
    instructions = sum(taken.values())
    return TermCost(instructions, max(instructions / ISSUED_LANES, *(taken[unit] / lanes[unit] for unit in lanes)))


def _operations(e: Expr) -> Iterator[Expr]:
    """Yield the nodes of ``e`` above its loads."""
    if not isinstance(e, Load | Const):
        yield e
        for child in e.children:
            yield from _operations(child)


def _instructions(node: Expr) -> dict[str, float]:
    """Return how many instructions of each unit a node takes. Those of a sum with a product are counted as the
    product's, those of a lesser or greater int32 with a sum as the sum's (DPX), and a float's sign as nothing."""
    dtype = node.children[0].dtype
    unit, words = dtype.name if dtype.is_float else "integer", -(-dtype.bits // 32)
    match node:
        case Binary(op=BinaryOp.ADD | BinaryOp.SUB):
            return {} if _has(node, BinaryOp.MUL) else {unit: 1 if dtype.is_float else words}
        case Binary(op=BinaryOp.MUL):
            return {unit: 1 if dtype.is_float else words**2}
        case Binary(op=BinaryOp.MIN | BinaryOp.MAX) if dtype == int32 and _has(node, BinaryOp.ADD):
            return {}
        case Binary(op=BinaryOp.MIN | BinaryOp.MAX) if words == 2:
            return {"integer": 4, **({"float64": 2} if dtype.is_float else {})}
        case Binary(op=BinaryOp.DIV | BinaryOp.FLOORDIV | BinaryOp.MOD | BinaryOp.POW):
            return {unit: FUNCTION, "special": 1}
        case Unary(op=UnaryOp.NEG | UnaryOp.ABS) if dtype.is_float:
            return {}
        case Compare() if dtype == float64:
            return {"float64": 1}
        case Select():
            return {"integer": -(-node.dtype.bits // 32)}
        case Cast() if not dtype.is_bool:
            return {"special": 1}
        case Unary(op=op) if op not in (UnaryOp.NEG, UnaryOp.ABS, UnaryOp.NOT):
            return {unit: FUNCTION, "special": 1}
    return {"integer": words}


def _has(node: Expr, op: BinaryOp) -> bool:
    return any(isinstance(c, Binary) and c.op is op for c in node.children)
