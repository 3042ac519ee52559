"""Emits a kernel as a module of LLVM IR, with one ``amdgpu_kernel`` function for each of its launches.

Statements and expressions are written as for processors, on generic pointers. LLVM infers the address space of each.
The source for address spaces, calling conventions and intrinsics is the "User Guide for AMDGPU Backend" of llvm.org.
"""

from ...core.errors import CompileError
from ...core.target import Target
from ...ir.expr import WARP_LANES
from ...ir.stmt import AxisBinding, HardwareAxis, Kernel, Launch, Seq
from ...schedule.gpu.occupancy import limits_of
from ..backend import LaunchConfig, Source, parameters_of
from ..llvm.emit import source_origins
from ..llvm.frame_layout import FrameLayout
from ..llvm.function_context import FunctionContext
from ..llvm.statements import KernelContext, emit_statement
from ..llvm.values import LlvmValue, constant
from ..llvm.writer import FunctionWriter, ModuleWriter, identifier
from ..shared_memory import SharedMemoryPlan, plan_shared_memory
from .operations import emit_operation, exchange

TRIPLE = "amdgcn-amd-amdhsa"
_GLOBAL, _SHARED, _PRIVATE = 1, 3, 5
"""These are the address spaces of LLVM."""
_BLOCKS = {HardwareAxis.GRID_X: "x", HardwareAxis.GRID_Y: "y", HardwareAxis.GRID_Z: "z"}


def emit(kernel: Kernel, target: Target) -> Source:
    """Emit ``kernel``. Raises CompileError where a top-level statement of it is no launch."""
    module = ModuleWriter(stack_address_space=_PRIVATE)
    configs: list[LaunchConfig] = []
    for launch in kernel.body.statements if isinstance(kernel.body, Seq) else (kernel.body,):
        if not isinstance(launch, Launch):
            raise CompileError(f"a kernel for {target} is made of launches, not of {type(launch).__name__}")
        try:
            configs.append(_emit_launch(module, kernel, launch, target))
        except RecursionError as error:
            raise CompileError("an expression or loop nest is nested too deeply to be compiled") from error
    text = f'; {kernel.name} for {target}\ntarget triple = "{TRIPLE}"\n\n{module.text()}'
    origins = source_origins(kernel, module)
    return Source("llvm-ir", text, configs[0].function, parameters_of(kernel), tuple(configs), origins=origins)


def _emit_launch(module: ModuleWriter, kernel: Kernel, launch: Launch, target: Target) -> LaunchConfig:
    """Define the function of one launch; return how it is launched."""
    module.origin = launch
    plan = _shared_plan(launch, target)
    name = module.unique(f"tw_{identifier(launch.name)}")
    w = FunctionWriter(module)
    body = FunctionContext(w, emit_shuffle=exchange)
    given = [w.parameter(b.name, f"ptr addrspace({_GLOBAL})") for b in kernel.parameters]
    for buffer, pointer in zip(kernel.parameters, given, strict=True):
        body.pointers[buffer.name] = w.assign(f"addrspacecast {pointer.typed} to ptr", "ptr", hint=buffer.name)
    _declare_shared(body, name, plan)
    for bound in launch.axes:
        body.variables[bound.var] = _variable(w, bound)
        body.extents[bound.var] = bound.extent
    emit_statement(KernelContext(module, name, FrameLayout({}, 0), 1, emit_operation=emit_operation), body, launch.body)
    w.line("ret void")
    arguments = ", ".join(f"ptr addrspace({_GLOBAL}) noalias noundef nonnull align 16 {p.text}" for p in given)
    size = f'"amdgpu-flat-work-group-size"="{launch.threads},{launch.threads}" "uniform-work-group-size"="true"'
    module.define(name, w.text(f"amdgpu_kernel void @{name}({arguments}) {module.attributes} {size}"))
    every = tuple(range(len(kernel.parameters)))
    return LaunchConfig(name, launch.blocks, launch.threads, shared_bytes=plan.bytes, arguments=every)


def _shared_plan(launch: Launch, target: Target) -> SharedMemoryPlan:
    """Plan the shared memory of a launch. Raises CompileError for what the hardware does not have."""
    limits, plan = limits_of(target), plan_shared_memory(launch.body)
    if launch.extent(HardwareAxis.CLUSTER) > 1:
        raise CompileError(f"launch {launch.name} has clusters; {target} has none")
    if launch.threads > limits.threads_per_block:
        raise CompileError(f"launch {launch.name} has {launch.threads} threads; at most {limits.threads_per_block}")
    if plan.bytes > limits.shared_bytes_per_block:
        most = limits.shared_bytes_per_block
        raise CompileError(f"launch {launch.name} takes {plan.bytes} bytes of shared memory; at most {most}")
    for buffer in plan.buffers:
        if buffer.layout is not None and buffer.layout.swizzle is not None:
            raise CompileError(f"{buffer.name} is swizzled, which cannot be expressed for {target}")
    return plan


def _declare_shared(body: FunctionContext, name: str, plan: SharedMemoryPlan) -> None:
    """Declare the shared memory of a function, and a pointer into it for each shared buffer."""
    if not plan.bytes:
        return
    w = body.w
    memory = f"addrspace({_SHARED}) global [{plan.bytes} x i8] poison, align {plan.alignment}"
    w.module.global_value(f"{name}.shared", f"internal {memory}")
    start = w.assign(f"addrspacecast ptr addrspace({_SHARED}) @{name}.shared to ptr", "ptr", hint="shared")
    for buffer in plan.buffers:
        at = plan.offsets[buffer.name]
        body.pointers[buffer.name] = w.assign(f"getelementptr i8, {start.typed}, i64 {at}", "ptr", hint=buffer.name)


def _variable(w: FunctionWriter, bound: AxisBinding) -> LlvmValue:
    """Return a variable of the launch, such as the index of a block or a lane, as an index of the IR."""
    if bound.extent == 1:
        return constant(0, "i64")
    axis = _BLOCKS.get(bound.axis)
    name = "llvm.amdgcn.workitem.id.x" if axis is None else f"llvm.amdgcn.workgroup.id.{axis}"
    w.module.declare(f"declare i32 @{name}()")
    number = w.call(name, [], "i32", hint=bound.var)
    if bound.axis is HardwareAxis.WARP:
        number = w.op("lshr", number, constant(WARP_LANES.bit_length() - 1, "i32"))
    elif bound.axis is HardwareAxis.LANE:
        number = w.op("and", number, constant(WARP_LANES - 1, "i32"))
    return w.assign(f"zext nneg {number.typed} to i64", "i64", hint=bound.var)
