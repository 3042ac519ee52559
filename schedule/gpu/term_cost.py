"""How long a multiprocessor takes to combine an accumulator with one more term, by the instructions of the term."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from ...core.dtypes import INDEX, DType, float64, int32
from ...ir.buffer import Buffer
from ...ir.expr import Binary, BinaryOp, Cast, Compare, Expr, Load, Select, Unary, UnaryOp, index
from ...ir.rewrite import loads_of
from ...te.workload import Reducer
from ..tile.accumulation import Accumulation
from .peaks import GpuPeaks

INTEGER_LANES, SPECIAL_LANES, ISSUED_LANES = 64, 16, 128
"""How many results a multiprocessor has in a cycle of integers, comparisons, minima and maxima; of special functions
and conversions, other than those to float32 and from it to 16 bits; and of all instructions together (CUDA C++
Programming Guide, "Arithmetic Instructions")."""
ONE_OPERAND = 1 / 8
"""What depends on one operand alone is computed once for a row of results of a thread, for each the part of this."""
FUNCTION = 12
"""About how many multiply-adds a function of floats and a division take besides the special function unit."""


@dataclass(frozen=True, slots=True)
class TermCost:
    """What the combination of one accumulator with one term takes, or an element of a value: ``instructions`` of a
    thread, and ``cycles`` of a multiprocessor, in which its busiest unit has done them."""

    instructions: float
    cycles: float


def reduction_cost(reducer: Reducer, term: Expr, dtype: DType, peaks: GpuPeaks) -> TermCost:
    """Return what the combination of an accumulator with ``term`` takes on an NVIDIA GPU, roughly. ``dtype``: that of
    the result. Arithmetic on axes and loads are not counted."""
    kind = Accumulation(reducer, term.dtype, dtype)
    state = [Load(Buffer(f"state_{n}", (), held), ()) for n, held in enumerate(kind.state_dtypes)]
    combined = kind.accumulate(state, term, index(0))
    nodes = {node for value in combined for node in _operations(value)}
    return _cost({node: 1.0 if len(set(loads_of(node))) > 1 else ONE_OPERAND for node in nodes}, peaks)


def value_cost(value: Expr, once: Collection[Load], peaks: GpuPeaks) -> TermCost:
    """Return what it takes to compute an element of ``value`` from what its loads give, roughly. What follows from the
    loads ``once`` alone is computed for many elements at a time."""
    nodes = {node for node in _operations(value) if not set(once).issuperset(loads_of(node))}
    return _cost(dict.fromkeys(nodes, 1.0), peaks)


def is_counted(node: Expr) -> bool:
    """Return whether a node takes instructions of its own: it is no value that is at hand, and no arithmetic on axes
    alone, which addresses take in."""
    return bool(node.children) and not isinstance(node, Load) and (node.dtype != INDEX or bool(loads_of(node)))


def _cost(shares: Mapping[Expr, float], peaks: GpuPeaks) -> TermCost:
    """Return what nodes take, each of which is computed for such a share of results."""
    lanes = {
        "float32": peaks.float32_flops_per_cycle / 2,
        "float64": peaks.float64_flops_per_cycle / 2,
        "integer": INTEGER_LANES,
        "special": SPECIAL_LANES,
    }
    taken = dict.fromkeys(lanes, 0.0)
    for node, share in shares.items():
        for unit, count in instructions_of(node).items():
            taken[unit] += share * count
    instructions = sum(taken.values())
    return TermCost(instructions, max(instructions / ISSUED_LANES, *(taken[unit] / lanes[unit] for unit in lanes)))


def _operations(e: Expr) -> Iterator[Expr]:
    """Yield the nodes of ``e`` above its loads. What reads no tensor is arithmetic on axes."""
    if not isinstance(e, Load) and loads_of(e):
        yield e
        for child in e.children:
            yield from _operations(child)


def instructions_of(node: Expr) -> dict[str, float]:
    """Return how many instructions of each unit a node takes. Those of a sum with a product are counted as the
    product's, those of a lesser or greater int32 with a sum as the sum's (DPX), and a float's sign as nothing."""
    dtype = node.children[0].dtype
    words = -(-dtype.bits // 32)
    unit = ("float32" if words == 1 else "float64") if dtype.is_float else "integer"
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
        case Cast() if dtype.bits == 8 and node.dtype.is_float:
            return {"integer": 2}  # one takes the byte out of its word
        case Cast() if dtype.is_float and dtype.bits < 32:
            return {"float32": 1}
        case Cast() if words == 1 and node.dtype.is_float and node.dtype.bits == (16 if dtype.is_float else 32):
            return {"integer": 1}  # F2FP, I2FP
        case Cast() if dtype.is_float or node.dtype.is_float:
            return {"special": 1}
        case Unary(op=op) if op not in (UnaryOp.NEG, UnaryOp.ABS, UnaryOp.NOT):
            return {unit: FUNCTION, "special": 1}
    return {"integer": words}


def _has(node: Expr, op: BinaryOp) -> bool:
    return any(isinstance(c, Binary) and c.op is op for c in node.children)
