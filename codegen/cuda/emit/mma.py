"""Writes matrix instructions: ``mma.sync`` with ``ldmatrix`` and ``stmatrix`` for warps, ``wgmma`` for warpgroups."""

from ....core.dtypes import float64
from ....core.errors import CompileError
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import Expr
from ....ir.gpu.ldmatrix import LoadMatrix, StoreMatrix
from ....ir.gpu.mma import WARP_MMA_ATOMS, Mma
from ....ir.gpu.wgmma import LINE_BYTES, WGMMA_ATOMS, WarpgroupMma, WarpgroupMmaWait
from ..prelude.wgmma import wgmma_name
from .access import divisibility, strided_offset
from .expressions import ExpressionEmitter
from .memory import address, offset, unswizzled_offset, word_index
from .types import is_half

ONE_ROW_LEADING_BYTES = 16
"""An MN-major operand with one row of 64 elements along m or n, which has no next one, has this leading byte offset."""


def emit_mma(emitter: ExpressionEmitter, stmt: Mma | LoadMatrix | StoreMatrix | WarpgroupMma | WarpgroupMmaWait) -> str:
    """Return the C++ statement of ``stmt``. Raises CompileError for what the architecture does not have."""
    match stmt:
        case Mma():
            return _mma(emitter, stmt)
        case LoadMatrix():
            row = address(emitter, stmt.source, offset(emitter, stmt.source, stmt.source_indices))
            fragment = _matrix_fragment(emitter, stmt.target, stmt.target_indices)
            return f"{emitter.fn.use('ldmatrix')}<{stmt.count}, {flag(stmt.transposed)}>({fragment}, {row});"
        case StoreMatrix():
            row = address(emitter, stmt.target, offset(emitter, stmt.target, stmt.target_indices))
            fragment = _matrix_fragment(emitter, stmt.source, stmt.source_indices)
            return f"{emitter.fn.use_sm_90('stmatrix')}<{stmt.count}, {flag(stmt.transposed)}>({row}, {fragment});"
        case WarpgroupMma():
            return _wgmma(emitter, stmt)
        case WarpgroupMmaWait():
            return _wgmma_wait(emitter, stmt)


def _mma(emitter: ExpressionEmitter, stmt: Mma) -> str:
    if stmt.atom not in WARP_MMA_ATOMS:
        raise CompileError(f"no matrix instruction {stmt.atom!r}; known: {', '.join(WARP_MMA_ATOMS)}")
    d = fragment_pointer(emitter, stmt.d, stmt.d_indices, 1)
    together, use = WARP_MMA_ATOMS[stmt.atom].register_elements, emitter.fn.use
    if stmt.d.dtype == float64:
        use = emitter.fn.use_sm_90
    a, b = (fragment_pointer(emitter, x, i, together) for x, i in ((stmt.a, stmt.a_indices), (stmt.b, stmt.b_indices)))
    return f"{use(f'mma_{stmt.atom}')}({d}, {a}, {b});"


def _wgmma(emitter: ExpressionEmitter, stmt: WarpgroupMma) -> str:
    in_registers = stmt.a.scope is MemoryScope.REGISTER
    atom = WGMMA_ATOMS[stmt.a.dtype.name, stmt.b.dtype.name]
    function = emitter.fn.use_sm_90a(wgmma_name(atom, stmt.n, in_registers))
    d = fragment_pointer(emitter, stmt.d, stmt.d_indices, 1)
    anew = stmt.recomputes_addresses
    b = _descriptor(emitter, stmt.b, stmt.b_indices, stmt.b_transposed, stmt.b_leading_lines, recomputed=anew)
    if in_registers:
        assert atom.fragment is not None
        a = fragment_pointer(emitter, stmt.a, stmt.a_indices, atom.fragment.register_elements)
        flags = f"{stmt.k}, {flag(stmt.b_transposed)}" if atom.transposes else f"{stmt.k}"
    else:
        a = _descriptor(emitter, stmt.a, stmt.a_indices, stmt.a_transposed, recomputed=anew)
        flags = f"{stmt.k}, {flag(stmt.a_transposed)}, {flag(stmt.b_transposed)}" if atom.transposes else f"{stmt.k}"
    match stmt.accumulates:
        case Expr() as expr:
            return f"{function}<{flags}>({d}, {a}, {b}, {emitter.value(expr).text});"
        case True:
            return f"{function}<{flags}>({d}, {a}, {b});"
    return f"{function}<{flags}>({d}, {a}, {b}, false);"


def _wgmma_wait(emitter: ExpressionEmitter, stmt: WarpgroupMmaWait) -> str:
    fn = emitter.fn
    first = [] if stmt.after is None else [f"{fn.use('computed_here')}({emitter.value(stmt.after).text});"]
    fences = list[str]()
    for b in fn.accumulators:
        fence = fn.use("warpgroup_fence_operand" if b.dtype.is_float else "warpgroup_fence_integer_operand")
        fences.append(f"{fence}<{b.elements}>({fn.name_of(b.name)});")
    return " ".join([*first, f"{fn.use_sm_90a('wgmma_wait_group')}<{stmt.pending}>();", *fences])


def _descriptor(
    emitter: ExpressionEmitter,
    buffer: Buffer,
    indices: tuple[Expr, ...],
    mn_major: bool,
    leading_lines: int | None = None,
    *,
    recomputed: bool = False,
) -> str:
    """Return the shared-memory descriptor of an operand of ``wgmma``."""
    start = address(emitter, buffer, unswizzled_offset(emitter, buffer, indices))
    start = f"{emitter.fn.use('recomputed')}({start})" if recomputed else start
    if not mn_major:
        return f"{emitter.fn.use('wgmma_descriptor')}({start})"
    leading = buffer.strides[-3] * buffer.dtype.bytes if len(buffer.shape) > 2 else ONE_ROW_LEADING_BYTES
    leading = leading if leading_lines is None else leading_lines * LINE_BYTES
    return f"{emitter.fn.use('wgmma_descriptor_mn_major')}<{leading}>({start})"


def _matrix_fragment(emitter: ExpressionEmitter, buffer: Buffer, indices: tuple[Expr, ...]) -> str:
    if not is_half(buffer.dtype):
        raise CompileError(f"matrices of {buffer.dtype} cannot be moved: their elements have 16 bits")
    return fragment_pointer(emitter, buffer, indices, 2)


def fragment_pointer(emitter: ExpressionEmitter, buffer: Buffer, indices: tuple[Expr, ...], per_register: int) -> str:
    """Return a pointer to the first register of a fragment, each of which holds ``per_register`` elements."""
    found = strided_offset(indices, buffer.strides)
    if buffer.scope is not MemoryScope.REGISTER or found is None:
        raise CompileError(f"a fragment lies in a register buffer, {buffer.name} is {buffer.scope}")
    if divisibility(found.base) % per_register:
        raise CompileError(f"a fragment of {buffer.name} begins in the middle of a register")
    at = emitter.value(found.base)
    name = emitter.fn.name_of(buffer.name)
    return name if at.text == "0" else f"{name} + {word_index(at) if per_register == 2 else at.text}"


def flag(value: bool) -> str:
    return "true" if value else "false"
