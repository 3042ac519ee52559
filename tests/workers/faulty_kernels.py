"""A builder of hand-made kernels, good ones and every kind of bad one: the ``fault`` knob says which.

Kernels are LLVM IR compiled by the real backend, so what is wrong with them is really wrong. All compute
``C[i] = A[i] + 1`` over one axis. Builder children call ``build`` in place of the product's own.
"""

import ctypes
import os
import signal
from collections.abc import Callable

from tilewright.codegen.backend import CompiledKernel, KernelParameter, Source
from tilewright.codegen.backends import backend_for
from tilewright.core.dtypes import DType
from tilewright.core.errors import CompileError, IllegalSchedule, InvalidKernel
from tilewright.core.schedule import Schedule
from tilewright.core.target import Target
from tilewright.te.build import compute, placeholder, workload
from tilewright.te.workload import Workload

SIZE = 1000


def add_one(dtype: str = "float32") -> Workload:
    a = placeholder((SIZE,), dtype, name="A")
    return workload(compute((SIZE,), lambda i: a[i] + 1, name="C"))


def schedule(fault: str) -> Schedule:
    return Schedule.of("hand_made", 1, {"fault": fault})


def build(work: Workload, target: Target, chosen: Schedule) -> CompiledKernel:
    fault = str(chosen["fault"])
    if fault in BUILDERS:
        BUILDERS[fault]()
    dtype = work.inputs[0].dtype
    parameters = (KernelParameter("A", "input", (SIZE,), dtype), KernelParameter("C", "output", (SIZE,), dtype))
    if fault == "stray_parameter":
        parameters = (KernelParameter("B", "input", (SIZE,), dtype), parameters[1])
    return backend_for(target).compile(Source("llvm-ir", _text(fault, dtype), "entry", parameters), target)


def _hang() -> None:
    while True:
        signal.pause()


def _segfault() -> None:
    ctypes.memset(0, 0, 1)


def _exhaust() -> None:
    bytearray(1 << 50)


def _raise(error: Exception) -> None:
    raise error


BUILDERS: dict[str, Callable[[], object]] = {
    "builder_hangs": _hang,
    "builder_segfaults": _segfault,
    "builder_aborts": os.abort,
    "builder_exits": lambda: os._exit(3),
    "builder_is_killed": lambda: os.kill(os.getpid(), 9),
    "builder_exhausts_memory": _exhaust,
    "builder_has_a_bug": lambda: _raise(ZeroDivisionError("in a sketch")),
    "schedule_is_illegal": lambda: _raise(IllegalSchedule("factor 7 of 10", field="factor")),
    "kernel_is_invalid": lambda: _raise(InvalidKernel("a store to an input")),
    "compiler_refuses": lambda: _raise(CompileError("no such instruction")),
}


GO = "br label %go\ngo:"
COUNT = "%n = load i64, ptr @calls\n%n2 = add i64 %n, 1\nstore i64 %n2, ptr @calls\n%late = icmp ugt i64 %n2, 20\n"
WAIT = "call i32 @pause()\nbr label %wait"
"""Most that hangs waits in the system, which takes no time of the tests beside it."""
PROLOGUES = {
    "loops_for_ever": f"br label %wait\nwait:\n{WAIT}\nunreached:",
    "spins_for_ever": "br label %spin\nspin:\nbr label %spin\nunreached:",
    "segfaults": f"store volatile i8 1, ptr inttoptr (i64 64 to ptr)\n{GO}",
    "illegal_instruction": f"call void @llvm.trap()\n{GO}",
    "divides_by_zero": "%z = load volatile i64, ptr @calls\n%q = sdiv i64 1000003, %z\n"
    f"store volatile i64 %q, ptr @calls\n{GO}",
    "writes_its_input": f"store i8 77, ptr %a\n{GO}",
    "slow": "br label %wait\nwait:\n%w = phi i64 [0, %entry], [%w2, %wait]\n%w2 = add i64 %w, 1\n"
    "store volatile i64 %w2, ptr @calls\n%more_wait = icmp ult i64 %w2, 20000000\n"
    "br i1 %more_wait, label %wait, label %go\ngo:",
    "hangs_after_many_launches": f"{COUNT}br i1 %late, label %wait, label %go\nwait:\n{WAIT}\ngo:",
    "wrong_after_many_launches": f"{COUNT}br i1 %late, label %spoil, label %go\nspoil:\nstore i16 7, ptr %c\n"
    "br label %done\ngo:",
}
"""What runs before the loop, ending in the label of the block that the loop is entered from."""


def _text(fault: str, dtype: DType) -> str:
    kind = {"float32": "float", "float64": "double", "int32": "i32", "int8": "i8"}[dtype.name]
    add, one = ("fadd", "1.0") if dtype.is_float else ("add", "1")
    one = {"wrong": one.replace("1", "2"), "nan": "0x7FF8000000000000"}.get(fault, one)
    count = {"one_unwritten": SIZE - 1, "one_past_the_end": SIZE + 1}.get(fault, SIZE)
    first = -1 if fault == "one_before_the_start" else 0
    prologue = PROLOGUES.get(fault, GO)
    return f"""
@calls = internal global i64 0
declare void @llvm.trap()
declare i32 @pause()
define i32 @entry(ptr %arguments) {{
entry:
  %a = load ptr, ptr %arguments
  %second = getelementptr ptr, ptr %arguments, i64 1
  %c = load ptr, ptr %second
{prologue}
  br label %loop
loop:
  %i = phi i64 [ {first}, %{prologue.rsplit(chr(10), 1)[-1].rstrip(":")} ], [ %next, %loop ]
  %from = getelementptr {kind}, ptr %a, i64 %i
  %to = getelementptr {kind}, ptr %c, i64 %i
  %x = load {kind}, ptr %from
  %y = {add} {kind} %x, {one}
  store volatile {kind} %y, ptr %to
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, {count}
  br i1 %more, label %loop, label %done
done:
  ret i32 0
}}
"""
