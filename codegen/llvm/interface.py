"""The functions by which other programs call a kernel: a C function, and one for apache-tvm-ffi that checks its
arguments."""

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from ...codegen.backend import KernelParameter
from ...core.dtypes import DType
from ...core.target import Target
from ..backend import Source
from .architectures import architecture_of
from .compile import compile_together
from .runtime_support import services_ir, thread_pool_ir
from .statements import PARALLEL_FOR, SCRATCH
from .values import LlvmValue, constant
from .writer import FunctionWriter, ModuleWriter

_DLTENSOR_POINTER, _TENSOR, _TENSOR_OFFSET = 7, 70, 24
"""These are ``kTVMFFIDLTensorPtr``, ``kTVMFFITensor`` and the offset of the DLTensor in an object of the latter
(``tvm/ffi/c_api.h``)."""
_ANY_BYTES, _ANY_VALUE = 16, 8
"""The size of a ``TVMFFIAny``, and the offset of its value, in bytes."""
_DATA, _DEVICE_TYPE, _DIMENSIONS, _DTYPE, _SHAPE, _STRIDES, _BYTE_OFFSET = 0, 8, 16, 20, 24, 32, 40
"""The offsets of the fields of a DLTensor, in bytes (``dlpack/dlpack.h``)."""
_CPU = 1
_DTYPE_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6}
_MESSAGE_BYTES = 512
_MUTEX_BYTES = 64


def function_name(name: str) -> str:
    """Return the name of the C function of the kernel ``name``."""
    return f"tilewright_{name}"


def ffi_name(name: str) -> str:
    """Return the symbol by which apache-tvm-ffi finds a function called ``name``."""
    return f"__tvm_ffi_{name}"


def calls_thread_pool(source: Source) -> bool:
    """Say whether a kernel has parallel loops."""
    return f"@{PARALLEL_FOR}(" in source.text


def uses_scratch(source: Source) -> bool:
    """Say whether a kernel keeps buffers in a thread's scratch memory."""
    return f"@{SCRATCH}(" in source.text


def arguments_of(source: Source) -> tuple[KernelParameter, ...]:
    """Return what a caller gives: the inputs, then the outputs. The workspace belongs to the library."""
    return tuple(p for p in source.parameters if p.role != "workspace")


def library_object(source: Source, name: str, target: Target) -> bytes:
    """Return a relocatable object with the two functions, the kernel, and the services that it calls. It needs
    nothing but the C library. Raises CompileError."""
    architecture = architecture_of(target)
    texts = [source.text, interface_ir(source, name)]
    if calls_thread_pool(source):
        texts.append(thread_pool_ir(architecture, target.threads))
    if uses_scratch(source):
        texts.append(services_ir(architecture))
    return compile_together(texts, (function_name(name), ffi_name(name)), target, minimal_passes=source.minimal_passes)


def interface_ir(source: Source, name: str) -> str:
    """Return the two functions as a module, which is linked with the modules that it calls."""
    module = ModuleWriter()
    _write_function(module, source, name)
    _write_checks(module, source, name)
    return module.text()


def _write_function(module: ModuleWriter, source: Source, name: str) -> None:
    """Write ``void tilewright_NAME(inputs…, outputs…)``. A kernel with workspace has only one, so a mutex admits one
    call at a time."""
    w = FunctionWriter(module)
    given = {p.name: w.parameter(p.name, "ptr") for p in arguments_of(source)}
    signature = ", ".join(f"{p.typed}" for p in given.values())
    if calls_thread_pool(source) or uses_scratch(source):
        _prepare_once(module, source, w)
    slots = w.alloca(f"[{len(source.parameters)} x ptr]", "arguments")
    owned = 0
    for position, parameter in enumerate(source.parameters):
        pointer = given.get(parameter.name)
        if pointer is None:
            pointer = LlvmValue(f"@workspace.{owned}", "ptr")
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
    """Write what the first call does: it prepares scratch memory and the thread pool. A forked child starts threads
    of its own."""
    inner = FunctionWriter(module)
    if uses_scratch(source):
        module.declare("declare void @tilewright_prepare()")
        inner.line("call void @tilewright_prepare()")
    if calls_thread_pool(source):
        module.declare("declare i32 @pthread_atfork(ptr, ptr, ptr)")
        module.declare("declare void @tilewright_after_fork()")
        inner.line("call i32 @pthread_atfork(ptr null, ptr null, ptr @tilewright_after_fork)")
    inner.line("ret void")
    module.define("prepare", inner.text("internal void @prepare() nounwind"))
    module.global_value("once", "internal global i32 0")
    module.declare("declare i32 @pthread_once(ptr, ptr)")
    w.line("call i32 @pthread_once(ptr @once, ptr @prepare)")


class ArgumentChecks:
    """The function that is being written, and how it returns where a condition does not hold."""

    def __init__(self, w: FunctionWriter) -> None:
        self.w = w
        self._message = w.alloca(f"[{_MESSAGE_BYTES} x i8]", "message")
        self._texts: dict[str, LlvmValue] = {}

    def text(self, text: str) -> LlvmValue:
        """Return a pointer to ``text`` as a C string."""
        if text not in self._texts:
            data = text.encode() + b"\0"
            name = f"text.{len(self._texts)}"
            escaped = "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:02X}" for b in data)
            self.w.module.global_value(name, f'private unnamed_addr constant [{len(data)} x i8] c"{escaped}"')
            self._texts[text] = LlvmValue(f"@{name}", "ptr")
        return self._texts[text]

    def require(self, holds: LlvmValue, kind: str, text: str, *values: LlvmValue) -> None:
        """Continue where ``holds``; otherwise raise a Python error of class ``kind``, whose message ``text`` is
        formatted by printf. A process without apache-tvm-ffi sees the result -1 alone, but nothing calls the
        function there."""
        w = self.w
        w.module.declare("declare i32 @snprintf(ptr, i64, ptr, ...)")
        w.module.declare("declare extern_weak void @TVMFFIErrorSetRaisedFromCStr(ptr, ptr)")
        fine, wrong, told, failed = (w.label(hint) for hint in ("fine", "wrong", "told", "failed"))
        w.branch(holds, fine, wrong)
        w.begin_block(wrong)
        operands = "".join(f", {value.typed}" for value in values)
        size = f"i64 {_MESSAGE_BYTES}, {self.text(text).typed}"
        w.line(f"call i32 (ptr, i64, ptr, ...) @snprintf({self._message.typed}, {size}{operands})")
        there = w.assign("icmp ne ptr @TVMFFIErrorSetRaisedFromCStr, null", "i1")
        w.branch(there, told, failed)
        w.begin_block(told)
        w.line(f"call void @TVMFFIErrorSetRaisedFromCStr({self.text(kind).typed}, {self._message.typed})")
        w.jump(failed)
        w.begin_block(failed)
        w.line("ret i32 -1")
        w.begin_block(fine)

    def equal(self, value: LlvmValue, wanted: int, kind: str, text: str) -> None:
        """Require ``value == wanted``; ``text`` has one printf conversion for the value."""
        self.require(self.w.compare("eq", value, constant(wanted, value.element)), kind, text, value)


def _write_checks(module: ModuleWriter, source: Source, name: str) -> None:
    """Write ``int __tvm_ffi_NAME(void *handle, const TVMFFIAny *args, int32_t count, TVMFFIAny *result)``."""
    w = FunctionWriter(module)
    handle, args = w.parameter("handle", "ptr"), w.parameter("args", "ptr")
    count, result = w.parameter("count", "i32"), w.parameter("result", "ptr")
    checks, parameters = ArgumentChecks(w), arguments_of(source)
    names = ", ".join(p.name for p in parameters)
    checks.equal(count, len(parameters), "TypeError", f"{name} takes {len(parameters)} tensors ({names}), not %d")
    addresses = [_checked_address(checks, p, _at(w, args, _ANY_BYTES * n)) for n, p in enumerate(parameters)]
    for later, parameter in enumerate(parameters):
        for earlier in range(later):
            if parameter.role == "output":
                _require_disjoint(checks, (parameters[earlier], addresses[earlier]), (parameter, addresses[later]))
    operands = ", ".join(f"ptr {w.assign(f'inttoptr {a.typed} to ptr', 'ptr').text}" for a in addresses)
    w.line(f"call void @{function_name(name)}({operands})")
    w.line("ret i32 0")
    signature = ", ".join(p.typed for p in (handle, args, count, result))
    module.define(ffi_name(name), w.text(f"i32 @{ffi_name(name)}({signature}) nounwind"))


def _checked_address(checks: ArgumentChecks, parameter: KernelParameter, argument: LlvmValue) -> LlvmValue:
    """Check that an argument is a tensor as the kernel takes it, and return the address of its first element."""
    w, name = checks.w, parameter.name
    index = _field(w, argument, 0, "i32")
    is_pointer, is_object = (w.compare("eq", index, constant(n, "i32")) for n in (_DLTENSOR_POINTER, _TENSOR))
    known = w.op("or", is_pointer, is_object)
    checks.require(known, "TypeError", f"{name} is no tensor (type index %d of tvm-ffi)", index)
    value = _field(w, argument, _ANY_VALUE, "ptr")
    tensor = w.select(is_pointer, value, _at(w, value, _TENSOR_OFFSET))
    device = _field(w, tensor, _DEVICE_TYPE, "i32")
    checks.equal(device, _CPU, "ValueError", f"{name} is on a device of type %d, needed: a CPU tensor ({_CPU})")
    rank = len(parameter.shape)
    checks.equal(_field(w, tensor, _DIMENSIONS, "i32"), rank, "ValueError", f"{name} has %d dimensions, needed: {rank}")
    _check_dtype(checks, name, parameter.dtype, tensor)
    shape, strides = (_field(w, tensor, at, "ptr") for at in (_SHAPE, _STRIDES))
    for dimension, extent in enumerate(parameter.shape):
        message = f"{name} has extent %lld along dimension {dimension}, needed: {extent}"
        checks.equal(_field(w, shape, 8 * dimension, "i64"), extent, "ValueError", message)
    _check_strides(checks, name, parameter.shape, strides)
    data, offset = _field(w, tensor, _DATA, "i64"), _field(w, tensor, _BYTE_OFFSET, "i64")
    address = w.op("add", data, offset, hint="address")
    beyond = w.op("and", address, constant(parameter.dtype.bytes - 1, "i64"))
    aligned = w.compare("eq", beyond, constant(0, "i64"))
    checks.require(aligned, "ValueError", f"{name} does not start at a multiple of {parameter.dtype.bytes} bytes")
    return address


def _check_dtype(checks: ArgumentChecks, name: str, dtype: DType, tensor: LlvmValue) -> None:
    """Check the dtype. A DLDataType is a code, bits and lanes in 8, 8 and 16 bits."""
    w, given = checks.w, _field(checks.w, tensor, _DTYPE, "i32")
    code = _DTYPE_CODES["bfloat" if dtype.name == "bfloat16" else dtype.kind]
    wanted = constant(code | dtype.bits << 8 | 1 << 16, "i32")
    fields = [w.op("and", given, constant(255, "i32"))]
    fields.append(w.op("and", w.op("lshr", given, constant(8, "i32")), constant(255, "i32")))
    fields.append(w.op("lshr", given, constant(16, "i32")))
    message = (
        f"{name} has elements of DLPack type code %d, %d bits, %d lanes; needed: {dtype} ({code}, {dtype.bits}, 1)"
    )
    checks.require(w.compare("eq", given, wanted), "TypeError", message, *fields)


def _check_strides(checks: ArgumentChecks, name: str, shape: Sequence[int], strides: LlvmValue) -> None:
    """Check that a tensor is contiguous. Null strides mean row-major; the stride of a dimension of extent 1 does not
    matter."""
    w, wanted = checks.w, _strides(shape)
    numbers = ", ".join(f"i64 {n}" for n in wanted)
    compact = w.alloca(f"[{len(shape)} x i64]", "compact")
    w.line(f"store [{len(shape)} x i64] [{numbers}], {compact.typed}, align 8")
    given = w.select(w.assign(f"icmp eq {strides.typed}, null", "i1"), compact, strides)
    for dimension, (extent, stride) in enumerate(zip(shape, wanted, strict=True)):
        if extent > 1:
            message = f"{name} is not contiguous: stride %lld along dimension {dimension}, needed: {stride}"
            checks.equal(_field(w, given, 8 * dimension, "i64"), stride, "ValueError", message)


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(accumulate(reversed(shape[1:]), mul, initial=1))[::-1] if shape else ()


def _require_disjoint(
    checks: ArgumentChecks, one: tuple[KernelParameter, LlvmValue], other: tuple[KernelParameter, LlvmValue]
) -> None:
    """Require that two arrays do not overlap. A kernel assumes that of every array that it writes."""
    w = checks.w
    ends = [w.op("add", at, constant(parameter.bytes, "i64")) for parameter, at in (one, other)]
    before, after = w.compare("ule", ends[0], other[1]), w.compare("ule", ends[1], one[1])
    disjoint = w.op("or", before, after)
    checks.require(disjoint, "ValueError", f"{other[0].name} overlaps {one[0].name}")


def _at(w: FunctionWriter, pointer: LlvmValue, offset: int) -> LlvmValue:
    return w.assign(f"getelementptr i8, {pointer.typed}, i64 {offset}", "ptr", hint="at") if offset else pointer


def _field(w: FunctionWriter, pointer: LlvmValue, offset: int, element: str) -> LlvmValue:
    align = 4 if element == "i32" else 8
    return w.assign(f"load {element}, {_at(w, pointer, offset).typed}, align {align}", element, hint="field")
