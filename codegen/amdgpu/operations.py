"""What lanes, warps and blocks do together, as intrinsics. A wave of 64 lanes is two warps of the IR."""

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

_PRODUCTS = {
    "wave_m16n16k16_f16": "llvm.amdgcn.mfma.f32.16x16x16f16",
    "wave_m16n16k16_bf16": "llvm.amdgcn.mfma.f32.16x16x16bf16.1k",
    "wave_m16n16k4_f32": "llvm.amdgcn.mfma.f32.16x16x4f32",
}


def emit_operation(body: Body, stmt: Operation) -> None:
    """Raises CompileError for an operation that these processors have not."""
    match stmt:
        case Barrier(scope=SyncScope.BLOCK):
            _barrier(body.w, "workgroup", "llvm.amdgcn.s.barrier")
        case Barrier(scope=SyncScope.WARP):
            _barrier(body.w, "wavefront", "llvm.amdgcn.wave.barrier")
        case Mma(atom=atom) if atom in _PRODUCTS:
            _product(body, stmt, MFMA_ATOMS[atom])
        case _:
            what = f"a barrier of the {stmt.scope}" if isinstance(stmt, Barrier) else type(stmt).__name__
            raise CompileError(f"{what} cannot be expressed for AMD's processors")


def exchange(w: FunctionWriter, shuffle: Shuffle, value: Value, lane: Value) -> Value:
    """``value`` of another lane of the warp, by way of the network of shared memory, which moves 32 bits."""
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
    """The number in its wave of the lane that is read."""
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
    """What came before is seen after it, by all who met."""
    w.module.declare(f"declare void @{name}()")
    w.line(f'fence syncscope("{scope}") release')
    w.line(f"call void @{name}()")
    w.line(f'fence syncscope("{scope}") acquire')


def _product(body: Body, stmt: Mma, atom: MmaAtom) -> None:
    w = body.w
    places = {"d": (stmt.d, stmt.d_indices), "a": (stmt.a, stmt.a_indices), "b": (stmt.b, stmt.b_indices)}
    at = {part: _place(body, *place) for part, place in places.items()}
    held = {}
    for part, (buffer, _) in places.items():
        element, lanes = storage(buffer.dtype), atom.elements(part)
        text = f"load {vector_type(element, lanes)}, {at[part].typed}, align {buffer.dtype.bytes}"
        held[part] = w.assign(text, element, lanes, part)
    name, result = _PRODUCTS[stmt.atom], held["d"]
    types = [held[part].type for part in "abd"]
    w.module.declare(f"declare {result.type} @{name}({', '.join(types)}, i32, i32, i32)")
    operands = [*(held[part] for part in "abd"), *[constant(0, "i32")] * 3]
    total = w.call(name, operands, result.element, result.lanes)
    w.line(f"store {total.typed}, {at['d'].typed}, align {stmt.d.dtype.bytes}")


def _place(body: Body, buffer: Buffer, indices: tuple[Expr, ...]) -> Value:
    flat = flat_form(indices, buffer.strides)
    assert flat.is_strided
    return address(body, buffer, flat, evaluate)
