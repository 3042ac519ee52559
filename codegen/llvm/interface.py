"""How other programs call a kernel: a C function, and one for apache-tvm-ffi that checks what it is given."""

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from ...core.dtypes import DType
from ...core.target import Target
from ..backend import KernelParameter, Source
from .architectures import architecture_of
from .compile import compile_together
from .runtime_support import pool_ir, support_ir
from .statements import PARALLEL_FOR, SCRATCH
from .values import Value, constant
from .writer import FunctionWriter, ModuleWriter

_ON_STACK_TENSOR, _TENSOR, _TENSOR_OFFSET = 7, 70, 24
"""``kTVMFFIDLTensorPtr``, ``kTVMFFITensor`` and where the latter's object has its DLTensor (``tvm/ffi/c_api.h``)."""
_ANY_BYTES, _ANY_VALUE = 16, 8
"""Of ``TVMFFIAny``: its size, and where its value lies."""
_DATA, _DEVICE_TYPE, _DIMENSIONS, _DTYPE, _SHAPE, _STRIDES, _BYTE_OFFSET = 0, 8, 16, 20, 24, 32, 40
"""Where the fields of a DLTensor lie (``dlpack/dlpack.h``)."""
_CPU = 1
_DTYPE_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6}
_MESSAGE_BYTES = 512
_MUTEX_BYTES = 64


def function_name(name: str) -> str:
    """The C function of the kernel called ``name``."""
    return f"tilewright_{name}"


def ffi_name(name: str) -> str:
    """The symbol that apache-tvm-ffi finds a function called ``name`` by."""
    return f"__tvm_ffi_{name}"


def calls_pool(source: Source) -> bool:
    """Whether a kernel has parallel loops."""
    return f"@{PARALLEL_FOR}(" in source.text


def calls_scratch(source: Source) -> bool:
    """Whether a kernel keeps buffers in a thread's scratch memory."""
    return f"@{SCRATCH}(" in source.text


def arguments_of(source: Source) -> tuple[KernelParameter, ...]:
    """What a caller gives: inputs, then outputs; workspace is the library's own."""
    return tuple(p for p in source.parameters if p.role != "workspace")


def library_object(source: Source, name: str, target: Target) -> bytes:
    """A relocatable object with the two functions, the kernel, and the services that it calls; the C library is all it
    needs. Raises CompileError."""
    architecture = architecture_of(target)
    texts = [source.text, interface_ir(source, name)]
    if calls_pool(source):
        texts.append(pool_ir(architecture, target.threads))
    if calls_scratch(source):
        texts.append(support_ir(architecture))
    return compile_together(texts, (function_name(name), ffi_name(name)), target, minimal_passes=source.minimal_passes)


def interface_ir(source: Source, name: str) -> str:
    """The two functions as a module, to be linked with the kernel's and those that it calls."""
    module = ModuleWriter()
    _write_function(module, source, name)
    _write_checks(module, source, name)
    return module.text()


def _write_function(module: ModuleWriter, source: Source, name: str) -> None:
    """``void tilewright_NAME(inputs…, outputs…)``. Calls take turns where the kernel has workspace, which is one."""
    w = FunctionWriter(module)
    given = {p.name: w.parameter(p.name, "ptr") for p in arguments_of(source)}
    signature = ", ".join(f"{p.typed}" for p in given.values())
    if calls_pool(source) or calls_scratch(source):
        _prepare_once(module, source, w)
    slots = w.alloca(f"[{len(source.parameters)} x ptr]", "arguments")
    owned = 0
    for position, parameter in enumerate(source.parameters):
        pointer = given.get(parameter.name)
        if pointer is None:
            pointer = Value(f"@workspace.{owned}", "ptr")
            module.global_value(pointer.text[1:], f"internal global [{parameter.bytes} x i8] zeroinitializer, align 64")
            owned += 1
        w.line(f"store {pointer.typed}, {_at(w, slots, 8 * position).typed}, align 8")
    if owned:
        module.global_value("mutex", f"internal global [{_MUTEX_BYTES} x i8] zeroinitializer, align 64")
        for change in ("lock", "unlock"):
            module.declare(f"declare i32 @pthread_mutex_{change}(ptr)")
        w.line("call i32 @pthread_mutex_lock(ptr @mutex)")
    for called in filter(None, (source.prologue, source.entry)):
        module.declare(f"declare i32 @{called}(ptr)")
        w.line(f"call i32 @{called}({slots.typed})")
    if owned:
        w.line("call i32 @pthread_mutex_unlock(ptr @mutex)")
    w.line("ret void")
    module.define(function_name(name), w.text(f"void @{function_name(name)}({signature}) nounwind"))


def _prepare_once(module: ModuleWriter, source: Source, w: FunctionWriter) -> None:
    """The first call makes ready what threads need; a forked child starts threads of its own."""
    inner = FunctionWriter(module)
    if calls_scratch(source):
        module.declare("declare void @tilewright_prepare()")
        inner.line("call void @tilewright_prepare()")
    if calls_pool(source):
        module.declare("declare i32 @pthread_atfork(ptr, ptr, ptr)")
        module.declare("declare void @tilewright_after_fork()")
        inner.line("call i32 @pthread_atfork(ptr null, ptr null, ptr @tilewright_after_fork)")
    inner.line("ret void")
    module.define("prepare", inner.text("internal void @prepare() nounwind"))
    module.global_value("once", "internal global i32 0")
    module.declare("declare i32 @pthread_once(ptr, ptr)")
    w.line("call i32 @pthread_once(ptr @once, ptr @prepare)")


class _Checks:
    """The function that is being written, and how it ends where something does not hold."""

    def __init__(self, w: FunctionWriter) -> None:
        self.w = w
        self._message = w.alloca(f"[{_MESSAGE_BYTES} x i8]", "message")
        self._texts: dict[str, Value] = {}

    def text(self, text: str) -> Value:
        """A C string."""
        if text not in self._texts:
            data = text.encode() + b"\0"
            name = f"text.{len(self._texts)}"
            escaped = "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:02X}" for b in data)
            self.w.module.global_value(name, f'private unnamed_addr constant [{len(data)} x i8] c"{escaped}"')
            self._texts[text] = Value(f"@{name}", "ptr")
        return self._texts[text]

    def require(self, holds: Value, kind: str, text: str, *values: Value) -> None:
        """Go on where ``holds``; else raise a Python error of a ``kind``: ``text`` as printf would write it. Without
        apache-tvm-ffi in the process, which nobody calls this from, there is only the result."""
        w = self.w
        w.module.declare("declare i32 @snprintf(ptr, i64, ptr, ...)")
        w.module.declare("declare extern_weak void @TVMFFIErrorSetRaisedFromCStr(ptr, ptr)")
        fine, wrong, told, failed = (w.label(hint) for hint in ("fine", "wrong", "told", "failed"))
        w.branch(holds, fine, wrong)
        w.begin(wrong)
        operands = "".join(f", {value.typed}" for value in values)
        size = f"i64 {_MESSAGE_BYTES}, {self.text(text).typed}"
        w.line(f"call i32 (ptr, i64, ptr, ...) @snprintf({self._message.typed}, {size}{operands})")
        there = w.assign("icmp ne ptr @TVMFFIErrorSetRaisedFromCStr, null", "i1")
        w.branch(there, told, failed)
        w.begin(told)
        w.line(f"call void @TVMFFIErrorSetRaisedFromCStr({self.text(kind).typed}, {self._message.typed})")
        w.jump(failed)
        w.begin(failed)
        w.line("ret i32 -1")
        w.begin(fine)

    def equal(self, value: Value, wanted: int, kind: str, text: str) -> None:
        """``text`` with one place for the value."""
        self.require(self.w.compare("eq", value, constant(wanted, value.element)), kind, text, value)


def _write_checks(module: ModuleWriter, source: Source, name: str) -> None:
    """``int __tvm_ffi_NAME(void *handle, const TVMFFIAny *args, int32_t count, TVMFFIAny *result)``."""
    w = FunctionWriter(module)
    handle, args = w.parameter("handle", "ptr"), w.parameter("args", "ptr")
    count, result = w.parameter("count", "i32"), w.parameter("result", "ptr")
    checks, parameters = _Checks(w), arguments_of(source)
    names = ", ".join(p.name for p in parameters)
    checks.equal(count, len(parameters), "TypeError", f"{name} takes {len(parameters)} tensors ({names}), not %d")
    addresses = [_checked(checks, p, _at(w, args, _ANY_BYTES * n)) for n, p in enumerate(parameters)]
    for later, parameter in enumerate(parameters):
        for earlier in range(later):
            if parameter.role == "output":
                _apart(checks, (parameters[earlier], addresses[earlier]), (parameter, addresses[later]))
    operands = ", ".join(f"ptr {w.assign(f'inttoptr {a.typed} to ptr', 'ptr').text}" for a in addresses)
    w.line(f"call void @{function_name(name)}({operands})")
    w.line("ret i32 0")
    signature = ", ".join(p.typed for p in (handle, args, count, result))
    module.define(ffi_name(name), w.text(f"i32 @{ffi_name(name)}({signature}) nounwind"))


def _checked(checks: _Checks, parameter: KernelParameter, argument: Value) -> Value:
    """The address of an argument's first element, once it has been found to be such a tensor as the kernel takes."""
    w, name = checks.w, parameter.name
    index = _field(w, argument, 0, "i32")
    is_plain, is_object = (w.compare("eq", index, constant(n, "i32")) for n in (_ON_STACK_TENSOR, _TENSOR))
    known = w.op("or", is_plain, is_object)
    checks.require(known, "TypeError", f"{name} is no tensor (type index %d of tvm-ffi)", index)
    value = _field(w, argument, _ANY_VALUE, "ptr")
    tensor = w.select(is_plain, value, _at(w, value, _TENSOR_OFFSET))
    device = _field(w, tensor, _DEVICE_TYPE, "i32")
    checks.equal(device, _CPU, "ValueError", f"{name} is on a device of type %d, needed: a CPU tensor ({_CPU})")
    rank = len(parameter.shape)
    checks.equal(_field(w, tensor, _DIMENSIONS, "i32"), rank, "ValueError", f"{name} has %d dimensions, needed: {rank}")
    _check_dtype(checks, name, parameter.dtype, tensor)
    shape, strides = (_field(w, tensor, at, "ptr") for at in (_SHAPE, _STRIDES))
    for dimension, extent in enumerate(parameter.shape):
        said = f"{name} has extent %lld along dimension {dimension}, needed: {extent}"
        checks.equal(_field(w, shape, 8 * dimension, "i64"), extent, "ValueError", said)
    _check_strides(checks, name, parameter.shape, strides)
    data, offset = _field(w, tensor, _DATA, "i64"), _field(w, tensor, _BYTE_OFFSET, "i64")
    address = w.op("add", data, offset, hint="address")
    beyond = w.op("and", address, constant(parameter.dtype.bytes - 1, "i64"))
    aligned = w.compare("eq", beyond, constant(0, "i64"))
    checks.require(aligned, "ValueError", f"{name} does not start at a multiple of {parameter.dtype.bytes} bytes")
    return address


def _check_dtype(checks: _Checks, name: str, dtype: DType, tensor: Value) -> None:
    """A DLDataType is a code, bits and lanes in 8, 8 and 16 bits."""
    w, given = checks.w, _field(checks.w, tensor, _DTYPE, "i32")
    code = _DTYPE_CODES["bfloat" if dtype.name == "bfloat16" else dtype.kind]
    wanted = constant(code | dtype.bits << 8 | 1 << 16, "i32")
    parts = [w.op("and", given, constant(255, "i32"))]
    parts.append(w.op("and", w.op("lshr", given, constant(8, "i32")), constant(255, "i32")))
    parts.append(w.op("lshr", given, constant(16, "i32")))
    said = f"{name} has elements of DLPack type code %d, %d bits, %d lanes; needed: {dtype} ({code}, {dtype.bits}, 1)"
    checks.require(w.compare("eq", given, wanted), "TypeError", said, *parts)


def _check_strides(checks: _Checks, name: str, shape: Sequence[int], strides: Value) -> None:
    """No strides mean rows after one another; along an extent of 1 any stride does."""
    w, wanted = checks.w, _strides(shape)
    numbers = ", ".join(f"i64 {n}" for n in wanted)
    compact = w.alloca(f"[{len(shape)} x i64]", "compact")
    w.line(f"store [{len(shape)} x i64] [{numbers}], {compact.typed}, align 8")
    given = w.select(w.assign(f"icmp eq {strides.typed}, null", "i1"), compact, strides)
    for dimension, (extent, stride) in enumerate(zip(shape, wanted, strict=True)):
        if extent > 1:
            said = f"{name} is not contiguous: stride %lld along dimension {dimension}, needed: {stride}"
            checks.equal(_field(w, given, 8 * dimension, "i64"), stride, "ValueError", said)


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(accumulate(reversed(shape[1:]), mul, initial=1))[::-1] if shape else ()


def _apart(checks: _Checks, one: tuple[KernelParameter, Value], other: tuple[KernelParameter, Value]) -> None:
    """A kernel takes it that what it writes overlaps nothing else."""
    w = checks.w
    ends = [w.op("add", at, constant(parameter.bytes, "i64")) for parameter, at in (one, other)]
    before, after = w.compare("ule", ends[0], other[1]), w.compare("ule", ends[1], one[1])
    apart = w.op("or", before, after)
    checks.require(apart, "ValueError", f"{other[0].name} overlaps {one[0].name}")


def _at(w: FunctionWriter, pointer: Value, offset: int) -> Value:
    return w.assign(f"getelementptr i8, {pointer.typed}, i64 {offset}", "ptr", hint="at") if offset else pointer


def _field(w: FunctionWriter, pointer: Value, offset: int, element: str) -> Value:
    align = 4 if element == "i32" else 8
    return w.assign(f"load {element}, {_at(w, pointer, offset).typed}, align {align}", element, hint="field")
