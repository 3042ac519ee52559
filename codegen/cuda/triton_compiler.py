"""Compiles a configuration of a user's Triton kernel to a cubin that is launched like our own.

Triton is imported here alone, and only where a kernel is built: in a child that may start programs (its assembler is
one) and that is restricted otherwise. The source is code. It is loaded as a module that has nothing but imports of
Triton, constants and functions (``te.triton_json``), and Triton's compiler reads the functions.
"""

import linecache
import os
import struct
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from typing import Any

from ...core.dtypes import uint8
from ...core.errors import CompileError, ResourcesExceeded, UnsupportedTarget
from ...core.schedule import Schedule
from ...core.target import Target, Toolchain
from ...schedule.gpu.triton import configuration_of
from ...te.triton import OPTIONS, PointerAccess, TritonKernel, TritonPointer, TritonScalar, TritonWorkload, Value
from ..backend import CompiledKernel, KernelParameter, LaunchConfig
from .compile.resources import check_launches

_TYPES = {
    "float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "int64": "i64", "int32": "i32",
    "int8": "i8", "uint8": "u8", "bool": "i1", "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5",
}  # fmt: skip
_DIVISIBLE = [["tt.divisibility", 16]]
SCRATCH = "global_scratch"
"""The workspace of a kernel that makes descriptors of TMA, for all its blocks."""


def triton_version() -> str | None:
    """Return the version of Triton that is installed; None where there is none."""
    try:
        import triton
    except ImportError:
        return None
    return str(triton.__version__)


def build_triton(workload: TritonWorkload, target: Target, schedule: Schedule) -> CompiledKernel:
    """Build one configuration. Raises IllegalSchedule, CompileError, and UnsupportedTarget where Triton is missing, or
    another version than the workload's."""
    return build_configuration(workload.triton, target, configuration_of(workload, schedule))


def build_configuration(kernel: TritonKernel, target: Target, number: int) -> CompiledKernel:
    """Build configuration ``number``. Raises as ``build_triton``."""
    blocks = kernel.blocks(number)
    row = kernel.configurations.row(number)
    compiled = _compiled(kernel, target, row)
    metadata = compiled.metadata
    if metadata.launch_cooperative_grid or metadata.profile_scratch_size:
        raise CompileError("kernels with a cooperative grid or a profiler's buffer are not launched here")
    parameters = [
        KernelParameter(p.name, "input" if p.access is PointerAccess.READ else "output", (p.elements,), p.dtype)
        for p in kernel.pointers
    ]
    scratch = metadata.global_scratch_size * blocks[0] * blocks[1] * blocks[2] * metadata.num_ctas
    if scratch:
        parameters.append(KernelParameter(SCRATCH, "workspace", (scratch,), uint8))
    numbers = tuple(
        (place, _bits(argument)) for place, argument in enumerate(_passed(kernel)) if isinstance(argument, TritonScalar)
    )
    count = len(parameters) + len(numbers)
    numbers += () if scratch else ((count, 0),)
    numbers += ((count + (not scratch), 0),)  # the profiler's buffer
    launch = LaunchConfig(
        metadata.name,
        (blocks[0] * metadata.num_ctas, blocks[1], blocks[2]),
        32 * metadata.num_warps,
        metadata.num_ctas,
        metadata.shared,
        tuple(range(len(parameters))),
        programmatic_dependent_launch=bool(metadata.launch_pdl),
        numbers=numbers,
    )
    check_launches([launch], {}, target)
    toolchain = Toolchain({"triton": kernel.version})
    return CompiledKernel("cubin", compiled.asm["cubin"], metadata.name, tuple(parameters), toolchain, (launch,))


def _passed(kernel: TritonKernel) -> list[TritonPointer | TritonScalar]:
    """Return the arguments that the compiled function has; a number that is compiled in is none."""
    return [a for a in kernel.arguments if isinstance(a, TritonPointer) or not a.is_one]


def _bits(scalar: TritonScalar) -> int:
    """Return a number as the driver reads it from eight bytes, of which it takes as many as the function wants."""
    if scalar.type == "fp32":
        return int.from_bytes(struct.pack("<f", scalar.value), "little")
    if scalar.type == "fp64":
        return int.from_bytes(struct.pack("<d", scalar.value), "little")
    return int(scalar.value) % (1 << 64)


def _compiled(kernel: TritonKernel, target: Target, row: Mapping[str, Value]) -> Any:
    if target.kind != "cuda":
        raise UnsupportedTarget(f"Triton kernels are built for kind cuda, not {target.kind}", field="target")
    found = triton_version()
    if found != kernel.version:
        given = "none is" if found is None else f"Triton {found} is"
        raise CompileError(f"the workload is for Triton {kernel.version}; {given} installed where kernels are built")
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature: dict[str, str] = {}
    constants: dict[str, object] = {}
    for argument in kernel.arguments:
        if isinstance(argument, TritonPointer):
            signature[argument.name] = f"*{_TYPES[argument.dtype.name]}"
        elif argument.is_one:
            signature[argument.name], constants[argument.name] = "constexpr", 1
        else:
            signature[argument.name] = argument.type
    for name, value in (*kernel.constants, *row.items()):
        if name not in OPTIONS:
            signature[name], constants[name] = "constexpr", _constant(value)
    options = {name: value for name, value in row.items() if name in OPTIONS and value is not None}
    with tempfile.TemporaryDirectory() as folder:  # nothing is kept: the next child would have to trust it
        os.environ["TRITON_CACHE_DIR"] = folder
        try:
            function = _function(kernel.source, kernel.name)
            order = {name: place for place, name in enumerate(function.arg_names)}
            divisible = [
                a.name
                for a in kernel.arguments
                if (a.aligned if isinstance(a, TritonPointer) else a.is_divisible and not a.is_one)
            ]
            attributes = {(order[name],): _DIVISIBLE for name in divisible}
            ordered = {name: signature[name] for name in function.arg_names}
            source = ASTSource(function, ordered, constants, attributes)
            gpu = GPUTarget("cuda", _capability(target), 32)
            return triton.compile(source, target=gpu, options=options)
        except triton.runtime.errors.OutOfResources as error:
            raise ResourcesExceeded(str(error)) from error
        except MemoryError:
            raise
        except Exception as error:  # whatever the compiler raises, it is the kernel's
            text = str(error).strip() or type(error).__name__
            raise CompileError(f"Triton: {text[-2000:]}") from error


def _capability(target: Target) -> int:
    """90 for ``sm_90a``."""
    return int("".join(c for c in target.arch if c.isdigit()))


def _constant(value: Value) -> object:
    """Return a constant as Triton takes it: ``tl.float32`` is that dtype."""
    if isinstance(value, str) and value.startswith("tl."):
        import triton.language as tl

        found = getattr(tl, value[3:], None)
        return found if isinstance(found, tl.dtype) else value
    return value


@lru_cache(maxsize=16)
def _function(source: str, name: str) -> Any:
    """Return the kernel of a source, which Triton reads through ``linecache``."""
    file = f"<triton kernel {sha256(source.encode()).hexdigest()[:16]}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    module: dict[str, Any] = {"__name__": "tilewright_triton_kernel", "__file__": file}
    exec(compile(source, file, "exec"), module)
    return module[name]
