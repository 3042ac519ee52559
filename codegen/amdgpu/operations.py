"""Emits what lanes, warps and blocks do together, as intrinsics of LLVM. A wavefront of 64 lanes is two warps of the
IR."""

from ...core.errors import CompileError
from ...ir.buffer import Buffer
from ...ir.expr import Expr, Shuffle, ShuffleMode
from ...ir.gpu.barrier import Barrier, SyncScope
from ...ir.gpu.mma import MFMA_ATOMS, WAVEFRONT_LANES, Mma, MmaAtom
from ...ir.linear_form import flat_form
from ...ir.stmt import Operation
from ..llvm.body import Body
from ..llvm.expressions import evaluate
from ..llvm.memory import address
from ..llvm.values import Value, constant, storage, vector_type
from ..llvm.writer import FunctionWriter

_MFMA_INTRINSICS = {
    "wave_m16n16k16_f16": "llvm.amdgcn.mfma.f32.16x16x16f16",
    "wave_m16n16k16_bf16": "llvm.amdgcn.mfma.f32.16x16x16bf16.1k",
    "wave_m16n16k4_f32": "llvm.amdgcn.mfma.f32.16x16x4f32",
}


def emit_operation(body: Body, stmt: Operation) -> None:
    """Emit ``stmt``. Raises CompileError for an operation that these processors do not have."""
    match stmt:
        case Barrier(scope=SyncScope.BLOCK):
            _barrier(body.w, "workgroup", "llvm.amdgcn.s.barrier")
        case Barrier(scope=SyncScope.WARP):
            _barrier(body.w, "wavefront", "llvm.amdgcn.wave.barrier")
        case Mma(atom=atom) if atom in _MFMA_INTRINSICS:
            _mfma(body, stmt, MFMA_ATOMS[atom])
        case _:
            what = f"a barrier of the {stmt.scope}" if isinstance(stmt, Barrier) else type(stmt).__name__
            raise CompileError(f"{what} cannot be expressed for AMD's processors")


def exchange(w: FunctionWriter, shuffle: Shuffle, value: Value, lane: Value) -> Value:
    """Return ``value`` of another lane of the warp. ``ds_bpermute`` moves 32 bits through the network of shared
    memory."""
    source = w.op("shl", _source(w, shuffle, w.convert("trunc", lane, "i32")), constant(2, "i32"))
    w.module.declare("declare i32 @llvm.amdgcn.ds.bpermute(i32, i32)")

    def moved(bits: Value) -> Value:
        return w.call("llvm.amdgcn.ds.bpermute", [source, bits], "i32")

    match value.element:
        case "i1" | "i8" | "i16":
            return w.convert("trunc", moved(w.convert("zext", value, "i32")), value.element)
        case "i32":
            return moved(value)
        case "float":
            return w.convert("bitcast", moved(w.bits(value)), "float")
    bits = w.convert("bitcast", value, "i64")
    halves = (bits, w.op("lshr", bits, constant(32, "i64")))
    low, high = (w.convert("zext", moved(w.convert("trunc", half, "i32")), "i64") for half in halves)
    whole = w.op("or", low, w.op("shl", high, constant(32, "i64")))
    return w.convert("bitcast", whole, value.element)


def _source(w: FunctionWriter, shuffle: Shuffle, lane: Value) -> Value:
    """Return the index, in its wavefront, of the lane that is read."""
    name = "llvm.amdgcn.workitem.id.x"
    w.module.declare(f"declare i32 @{name}()")
    own = w.op("and", w.call(name, [], "i32", hint="own"), constant(WAVEFRONT_LANES - 1, "i32"))
    if shuffle.mode is ShuffleMode.XOR:
        return w.op("xor", own, lane)
    last = constant(shuffle.width - 1, "i32")
    within = w.op("and", own, last)
    if shuffle.mode is ShuffleMode.INDEX:
        return w.op("or", w.op("xor", own, within), w.op("and", lane, last))
    inside = w.compare("ule", w.op("add", within, lane), last)
    return w.select(inside, w.op("add", own, lane), own)


def _barrier(w: FunctionWriter, scope: str, name: str) -> None:
    """Emit a barrier. What its threads wrote before it is visible to all of them after it."""
    w.module.declare(f"declare void @{name}()")
    w.line(f'fence syncscope("{scope}") release')
    w.line(f"call void @{name}()")
    w.line(f'fence syncscope("{scope}") acquire')


def _mfma(body: Body, stmt: Mma, atom: MmaAtom) -> None:
    """Load the fragments, emit the matrix instruction, and store its result."""
    w = body.w
    operands = {"d": (stmt.d, stmt.d_indices), "a": (stmt.a, stmt.a_indices), "b": (stmt.b, stmt.b_indices)}
    pointers = {name: _pointer(body, *operand) for name, operand in operands.items()}
    fragments = {}
    for name, (buffer, _) in operands.items():
        element, lanes = storage(buffer.dtype), atom.elements(name)
        text = f"load {vector_type(element, lanes)}, {pointers[name].typed}, align {buffer.dtype.bytes}"
        fragments[name] = w.assign(text, element, lanes, name)
    intrinsic, accumulators = _MFMA_INTRINSICS[stmt.atom], fragments["d"]
    types = [fragments[name].type for name in "abd"]
    w.module.declare(f"declare {accumulators.type} @{intrinsic}({', '.join(types)}, i32, i32, i32)")
    given = [*(fragments[name] for name in "abd"), *[constant(0, "i32")] * 3]
    result = w.call(intrinsic, given, accumulators.element, accumulators.lanes)
    w.line(f"store {result.typed}, {pointers['d'].typed}, align {stmt.d.dtype.bytes}")


def _pointer(body: Body, buffer: Buffer, indices: tuple[Expr, ...]) -> Value:
    """Return a pointer to the first element of a fragment."""
    flat = flat_form(indices, buffer.strides)
    assert flat.is_strided
    return address(body, buffer, flat, evaluate)
