"""Expressions of the kernel IR. Tensor expressions (``te``) share the scalar ones.

Expressions are frozen and compare by structure. Each has a dtype and a number of ``lanes``: one lane is a scalar, more
are a vector. Loop variables are told apart by name alone, so names are unique within a kernel; the verifier checks it.
Arithmetic on float16 and bfloat16 may be carried out in float32; stores and casts round. Integer arithmetic wraps. A
Select guards its branches: a load in the branch not taken is never performed, lane by lane.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import is_
from typing import TypeVar

from ..core.dtypes import INDEX, DType, boolean
from ..core.errors import InvalidKernel
from ..core.frozen import RemembersHash, quickly_built, with_remembered_hash
from .buffer import Buffer

Node = TypeVar("Node", bound="Expr")


class BinaryOp(StrEnum):
    """Both operands have one dtype, which is the result's too. ``div`` is for floats. ``floordiv`` and ``mod`` are for
    integers and round towards minus infinity: the remainder has the sign of the divisor. The operations on bits are for
    integers, too. A shift by fewer than 0 bits, or by all bits or more, shifts them all out: ``shl`` gives 0, and
    ``shr``, which copies the sign, 0 or -1."""

    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"
    FLOORDIV = "floordiv"
    MOD = "mod"
    MIN = "min"
    MAX = "max"
    POW = "pow"
    BIT_AND = "bitand"
    BIT_OR = "bitor"
    BIT_XOR = "bitxor"
    SHL = "shl"
    SHR = "shr"


BITWISE = frozenset({BinaryOp.BIT_AND, BinaryOp.BIT_OR, BinaryOp.BIT_XOR, BinaryOp.SHL, BinaryOp.SHR})


class CompareOp(StrEnum):
    """Both operands have one dtype; the result is a bool."""

    LT = "lt"
    LE = "le"
    GT = "gt"
    GE = "ge"
    EQ = "eq"
    NE = "ne"


class LogicOp(StrEnum):
    """Operands and result are bools."""

    AND = "and"
    OR = "or"


class UnaryOp(StrEnum):
    """``not`` takes a bool, ``neg`` and ``abs`` take any number, the rest take floats. The result has the operand's
    dtype."""

    NEG = "neg"
    ABS = "abs"
    NOT = "not"
    EXP = "exp"
    EXP2 = "exp2"
    LOG = "log"
    TANH = "tanh"
    ERF = "erf"
    SQRT = "sqrt"
    RSQRT = "rsqrt"
    SIN = "sin"
    COS = "cos"
    FLOOR = "floor"
    CEIL = "ceil"
    RINT = "rint"


WARP_LANES = 32
"""How many lanes a warp has."""

FLOAT_ONLY = frozenset(UnaryOp) - {UnaryOp.NEG, UnaryOp.ABS, UnaryOp.NOT}


class Expr(RemembersHash):
    """Base of all expressions. ``+ - * / // %`` and the orders build expressions; ``==`` compares structure."""

    __slots__ = ("_reads", "_variables")
    # what a node remembers of itself besides its hash; no fields, either
    _reads: "tuple[Load | ClusterLoad | Shuffle, ...]"
    _variables: frozenset[str]

    @property
    def dtype(self) -> DType:
        raise AssertionError(f"{type(self).__name__} has no dtype")

    @property
    def lanes(self) -> int:
        return 1

    @property
    def children(self) -> "tuple[Expr, ...]":
        return ()

    def __add__(self, other: "Expr | int | float") -> "Expr":
        return Binary(BinaryOp.ADD, self, as_expr(other, self.dtype))

    def __radd__(self, other: int | float) -> "Expr":
        return Binary(BinaryOp.ADD, as_expr(other, self.dtype), self)

    def __sub__(self, other: "Expr | int | float") -> "Expr":
        return Binary(BinaryOp.SUB, self, as_expr(other, self.dtype))

    def __rsub__(self, other: int | float) -> "Expr":
        return Binary(BinaryOp.SUB, as_expr(other, self.dtype), self)

    def __mul__(self, other: "Expr | int | float") -> "Expr":
        return Binary(BinaryOp.MUL, self, as_expr(other, self.dtype))

    def __rmul__(self, other: int | float) -> "Expr":
        return Binary(BinaryOp.MUL, as_expr(other, self.dtype), self)

    def __truediv__(self, other: "Expr | int | float") -> "Expr":
        return Binary(BinaryOp.DIV, self, as_expr(other, self.dtype))

    def __rtruediv__(self, other: int | float) -> "Expr":
        return Binary(BinaryOp.DIV, as_expr(other, self.dtype), self)

    def __floordiv__(self, other: "Expr | int") -> "Expr":
        return Binary(BinaryOp.FLOORDIV, self, as_expr(other, self.dtype))

    def __mod__(self, other: "Expr | int") -> "Expr":
        return Binary(BinaryOp.MOD, self, as_expr(other, self.dtype))

    def __neg__(self) -> "Expr":
        return Unary(UnaryOp.NEG, self)

    def __lt__(self, other: "Expr | int | float") -> "Expr":
        return Compare(CompareOp.LT, self, as_expr(other, self.dtype))

    def __le__(self, other: "Expr | int | float") -> "Expr":
        return Compare(CompareOp.LE, self, as_expr(other, self.dtype))

    def __gt__(self, other: "Expr | int | float") -> "Expr":
        return Compare(CompareOp.GT, self, as_expr(other, self.dtype))

    def __ge__(self, other: "Expr | int | float") -> "Expr":
        return Compare(CompareOp.GE, self, as_expr(other, self.dtype))


def _node(node: type[Node]) -> type[Node]:
    """Let each node of a class remember its hash, and be built quickly: the simplifier looks nodes up in tables, again
    and again."""
    return quickly_built(with_remembered_hash(node))


@quickly_built
@dataclass(frozen=True, slots=True)
class Var(Expr):
    """A loop variable, or another integer bound by a statement."""

    name: str

    def __eq__(self, other: object) -> bool:  # much used in tables: the ones that dataclasses make are slower
        return isinstance(other, Var) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def dtype(self) -> DType:
        return INDEX


@quickly_built
@dataclass(frozen=True, slots=True, eq=False)
class Const(Expr):
    """``value`` is an int for integers, a float for floats (infinities are allowed, NaN is not), a bool for bool.

    0.0 and -0.0 are different constants, so that a table keyed by expressions never mixes them up.
    """

    value: int | float | bool
    type: DType

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Const)
            and self.value == other.value
            and self.type == other.type
            and (self.value != 0 or not self.type.is_float or str(self.value) == str(other.value))
        )

    def __hash__(self) -> int:
        return hash((self.value, self.type.name))

    @property
    def dtype(self) -> DType:
        return self.type


@_node
@dataclass(frozen=True, slots=True)
class Binary(Expr):
    op: BinaryOp
    a: Expr
    b: Expr

    @property
    def dtype(self) -> DType:
        return self.a.dtype

    @property
    def lanes(self) -> int:
        return self.a.lanes

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.a, self.b)


class _Condition(Expr):
    """An expression whose value is a bool that only a kernel knows."""

    __slots__ = ()

    def __bool__(self) -> bool:
        """Raise InvalidKernel: ``if``, ``and``, ``or``, ``not`` and ``0 <= i < n`` of Python would take it for true."""
        raise InvalidKernel("a condition on expressions is neither true nor false; use select, all_of, any_of, negated")

    @property
    def dtype(self) -> DType:
        return boolean


@_node
@dataclass(frozen=True, slots=True)
class Compare(_Condition):
    op: CompareOp
    a: Expr
    b: Expr

    @property
    def lanes(self) -> int:
        return self.a.lanes

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.a, self.b)


@_node
@dataclass(frozen=True, slots=True)
class Logic(_Condition):
    op: LogicOp
    a: Expr
    b: Expr

    @property
    def lanes(self) -> int:
        return self.a.lanes

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.a, self.b)


@_node
@dataclass(frozen=True, slots=True)
class Unary(Expr):
    op: UnaryOp
    value: Expr

    @property
    def dtype(self) -> DType:
        return self.value.dtype

    @property
    def lanes(self) -> int:
        return self.value.lanes

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.value,)


@_node
@dataclass(frozen=True, slots=True)
class Select(Expr):
    """``then`` where ``condition`` holds, ``otherwise`` elsewhere. Loads of the branch not taken do not happen."""

    condition: Expr
    then: Expr
    otherwise: Expr

    @property
    def dtype(self) -> DType:
        return self.then.dtype

    @property
    def lanes(self) -> int:
        return self.then.lanes

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.condition, self.then, self.otherwise)


@_node
@dataclass(frozen=True, slots=True)
class Cast(Expr):
    """A cast to a float rounds to nearest, ties to even. One from float to integer rounds towards zero, saturates and
    makes NaN 0. One from integer to integer wraps. One to bool is ``!= 0``."""

    value: Expr
    type: DType

    @property
    def dtype(self) -> DType:
        return self.type

    @property
    def lanes(self) -> int:
        return self.value.lanes

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.value,)


@_node
@dataclass(frozen=True, slots=True)
class Load(Expr):
    """``buffer[indices]``. It has the lanes of its indices; each index has that number of lanes, or one.

    Where ``mask``, a bool with the same lanes, is false nothing is read and the lane is zero.
    """

    buffer: Buffer
    indices: tuple[Expr, ...]
    mask: Expr | None = None

    @property
    def dtype(self) -> DType:
        return self.buffer.dtype

    @property
    def lanes(self) -> int:
        return max((i.lanes for i in self.indices), default=1)

    @property
    def children(self) -> tuple[Expr, ...]:
        return self.indices if self.mask is None else (*self.indices, self.mask)


@_node
@dataclass(frozen=True, slots=True)
class Ramp(Expr):
    """The index vector ``base, base + stride, …`` with ``count`` lanes."""

    base: Expr
    stride: int
    count: int

    @property
    def dtype(self) -> DType:
        return self.base.dtype

    @property
    def lanes(self) -> int:
        return self.count

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.base,)


@_node
@dataclass(frozen=True, slots=True)
class Broadcast(Expr):
    """The scalar ``value`` in each of ``count`` lanes."""

    value: Expr
    count: int

    @property
    def dtype(self) -> DType:
        return self.value.dtype

    @property
    def lanes(self) -> int:
        return self.count

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.value,)


@_node
@dataclass(frozen=True, slots=True)
class ReduceLanes(Expr):
    """The lanes of a vector combined to a scalar by ``add``, ``mul``, ``min`` or ``max``, in any order."""

    op: BinaryOp
    value: Expr

    @property
    def dtype(self) -> DType:
        return self.value.dtype

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.value,)


class ShuffleMode(StrEnum):
    """Whose value a lane gets, within its group of ``width`` lanes: that of the lane whose number is its own xor
    ``lane``, its own plus ``lane``, or ``lane`` itself. ``down`` past the end of the group gives a lane its own
    value."""

    XOR = "xor"
    DOWN = "down"
    INDEX = "index"


@_node
@dataclass(frozen=True, slots=True)
class Shuffle(Expr):
    """The scalar ``value`` as another lane of the same warp has it (``shfl.sync``). All 32 lanes take part."""

    mode: ShuffleMode
    value: Expr
    lane: Expr
    width: int = WARP_LANES

    @property
    def dtype(self) -> DType:
        return self.value.dtype

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.value, self.lane)


@_node
@dataclass(frozen=True, slots=True)
class ClusterLoad(Expr):
    """``buffer[indices]`` of the block with rank ``block`` in this cluster (distributed shared memory).

    The buffer is shared; the value is a scalar or a vector as in Load. That block must stay alive: a barrier of the
    cluster stands between the last ClusterLoad and the end.
    """

    buffer: Buffer
    indices: tuple[Expr, ...]
    block: Expr

    @property
    def dtype(self) -> DType:
        return self.buffer.dtype

    @property
    def lanes(self) -> int:
        return max((i.lanes for i in self.indices), default=1)

    @property
    def children(self) -> tuple[Expr, ...]:
        return (*self.indices, self.block)


def as_expr(value: Expr | int | float | bool, dtype: DType) -> Expr:
    """Return ``value`` itself, or a constant of ``dtype``. Raises InvalidKernel for a number that the dtype cannot
    hold."""
    if isinstance(value, Expr):
        return value
    return const(value, dtype)


def const(value: int | float | bool, dtype: DType) -> Const:
    """Return a constant of ``dtype``. Raises InvalidKernel for what is no number, for NaN, and for numbers that the
    dtype cannot hold."""
    if not hasattr(value, "__float__"):
        raise InvalidKernel(f"{value!r} is neither an expression nor a number")
    if isinstance(value, float) and value != value:
        raise InvalidKernel("NaN is no constant")
    if dtype.is_float:
        return Const(float(value), dtype)
    if dtype.is_bool:
        if value not in (0, 1):
            raise InvalidKernel(f"{value!r} is no bool")
        return Const(bool(value), dtype)
    if value % 1 != 0:
        raise InvalidKernel(f"{value!r} is no {dtype}")
    low = -(1 << (dtype.bits - 1)) if dtype.kind == "int" else 0
    if not low <= int(value) < low + (1 << dtype.bits):
        raise InvalidKernel(f"{value!r} does not fit {dtype}")
    return Const(int(value), dtype)


def index(value: int) -> Const:
    return Const(value, INDEX)


def minimum(a: Expr, b: Expr) -> Expr:
    return Binary(BinaryOp.MIN, a, b)


def maximum(a: Expr, b: Expr) -> Expr:
    return Binary(BinaryOp.MAX, a, b)


def logical_and(*terms: Expr) -> Expr:
    """Return the conjunction of one or more bool expressions."""
    result = terms[0]
    for term in terms[1:]:
        result = Logic(LogicOp.AND, result, term)
    return result


def conjunction(*conditions: Expr | None) -> Expr | None:
    """Return the conjunction of those conditions that are not None; None where all are."""
    terms = [condition for condition in conditions if condition is not None]
    return logical_and(*terms) if terms else None


def walk(expr: Expr) -> Iterator[Expr]:
    """Yield ``expr`` and everything below it, parents first."""
    waiting = [expr]
    while waiting:
        here = waiting.pop()
        yield here
        waiting += here.children[::-1]


def distinct_nodes(*roots: Expr) -> Iterator[Expr]:
    """Yield ``roots`` and everything below them, each shared part once: the last root first, and depth first."""
    seen, pending = set[int](), list(roots)
    while pending:
        expr = pending.pop()
        if id(expr) not in seen:
            seen.add(id(expr))
            pending.extend(expr.children)
            yield expr


def rebuild(expr: Expr, children: Sequence[Expr]) -> Expr:
    """Return ``expr`` with its children replaced by ``children``, in their order; ``expr`` itself where none
    changed."""
    old = expr.children
    if len(old) == len(children) and all(map(is_, children, old)):
        return expr
    match expr:
        case Binary(op=op):
            return Binary(op, *children)
        case Compare(op=compare):
            return Compare(compare, *children)
        case Logic(op=logic):
            return Logic(logic, *children)
        case Unary(op=unary):
            return Unary(unary, *children)
        case Select():
            return Select(*children)
        case Cast(type=dtype):
            return Cast(children[0], dtype)
        case Load(buffer=buffer, mask=None):
            return Load(buffer, tuple(children))
        case Load(buffer=buffer):
            return Load(buffer, tuple(children[:-1]), children[-1])
        case Ramp(stride=stride, count=count):
            return Ramp(children[0], stride, count)
        case Broadcast(count=count):
            return Broadcast(children[0], count)
        case ReduceLanes(op=op):
            return ReduceLanes(op, children[0])
        case Shuffle(mode=mode, width=width):
            return Shuffle(mode, children[0], children[1], width)
        case ClusterLoad(buffer=buffer):
            return ClusterLoad(buffer, tuple(children[:-1]), children[-1])
    raise InvalidKernel(f"{type(expr).__name__} has no children to replace")
