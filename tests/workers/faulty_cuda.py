"""Hand-made CUDA kernels, one good and one for each way of going wrong on a device, in the place of the product's own.

They are CUDA C++ compiled by the real backend, so what is wrong with them is really wrong. All compute
``C[i] = A[i] + 1`` over one axis. Builder children call ``build``.
"""

from dataclasses import replace

from tilewright.codegen.backend import CompiledKernel, KernelParameter, LaunchConfig, Source
from tilewright.codegen.backends import backend_for
from tilewright.core.dtypes import float32
from tilewright.core.schedule import Schedule
from tilewright.core.target import Target
from tilewright.core.trial import Reason, TrialStage
from tilewright.te.build import compute, placeholder, workload
from tilewright.te.workload import Workload

SIZE = 1 << 20
THREADS = 256

_PLAIN = "if (i < SIZE) C[i] = A[i] + 1.0f;"
_LATE = "if (threadIdx.x == 0 && blockIdx.x == 0) late = atomicAdd(&calls, 1u) > 20u;"
BODIES = {
    "good": _PLAIN,
    "slow": "float x = 1.0f; for (int n = 0; n < 20000; ++n) x = x * 1.0000001f + A[(i + n) % SIZE];\n"
    "  if (x == 12345.0f) C[0] = x;\n  " + _PLAIN,
    "illegal_write": "C[i + (1ll << 44)] = A[i % SIZE];",
    "illegal_read": "if (i < SIZE) C[i] = A[i - (1ll << 44)] + 1.0f;",
    "misaligned": "if (i < 32) *(double*)((char*)C + 8 * i + 4) = 1.0;",
    "illegal_shared": "extern __shared__ float s[]; s[i + (1 << 24)] = A[i % SIZE]; C[i % SIZE] = s[i + (1 << 24)];",
    "traps": 'asm volatile("trap;");',
    "loops_for_ever": f"{_PLAIN}\n  while (*(volatile unsigned*)&flag == 0u) {{ }}",
    "waits_for_a_block_that_never_comes": _PLAIN
    + "\n  if (blockIdx.x == 0) while (*(volatile unsigned*)&flag < 2u) { }",
    "too_many_threads": _PLAIN,
    "too_much_shared": _PLAIN,
    "too_large_a_cluster": _PLAIN,
    "hangs_after_many_launches": f"{_PLAIN}\n  {_LATE}\n  while (*(volatile int*)&late != 0) {{ }}",
    "faults_after_many_launches": f"{_LATE}\n  if (late) C[i + (1ll << 44)] = 1.0f;\n  {_PLAIN}",
    "one_past_the_end": "if (i < SIZE) C[i] = A[i] + 1.0f;\n  if (i == 0) C[SIZE] = 1.0f;",
    "one_before_the_start": f"{_PLAIN}\n  if (i == 0) C[-1] = 1.0f;",
    "writes_its_input": f"{_PLAIN}\n  if (i == 7) ((float*)A)[i] = 77.0f;",
    "one_unwritten": "if (i < SIZE - 1) C[i] = A[i] + 1.0f;",
    "wrong": "if (i < SIZE) C[i] = A[i] + (i == 4321 ? 2.0f : 1.0f);",
    "nan": "if (i < SIZE) C[i] = i == 0 ? __int_as_float(0x7fc00000) : A[i] + 1.0f;",
    "wrong_after_many_launches": f"{_LATE}\n  if (i < SIZE) C[i] = A[i] + (late && i == 0 ? 2.0f : 1.0f);",
}
"""Name -> what a thread does; ``i`` is its number."""

ILLEGAL = ("illegal_write", "illegal_read", "misaligned", "illegal_shared", "traps", "faults_after_many_launches")
HANGS = ("loops_for_ever", "waits_for_a_block_that_never_comes", "hangs_after_many_launches")
LAUNCH_FAILURES = ("too_many_threads", "too_much_shared", "too_large_a_cluster")

VERDICTS: dict[str, tuple[TrialStage, Reason]] = {
    **dict.fromkeys(ILLEGAL, (TrialStage.CHECK, Reason.ILLEGAL_ACCESS)),
    **dict.fromkeys(HANGS, (TrialStage.CHECK, Reason.TIMEOUT)),
    "faults_after_many_launches": (TrialStage.TIME, Reason.ILLEGAL_ACCESS),
    "hangs_after_many_launches": (TrialStage.TIME, Reason.TIMEOUT),
    "too_many_threads": (TrialStage.CHECK, Reason.LAUNCH_ERROR),
    "too_much_shared": (TrialStage.LOAD, Reason.LAUNCH_ERROR),
    "too_large_a_cluster": (TrialStage.CHECK, Reason.LAUNCH_ERROR),
    "one_past_the_end": (TrialStage.CHECK, Reason.OUT_OF_BOUNDS),
    "one_before_the_start": (TrialStage.CHECK, Reason.OUT_OF_BOUNDS),
    "writes_its_input": (TrialStage.CHECK, Reason.OUT_OF_BOUNDS),
    "one_unwritten": (TrialStage.CHECK, Reason.UNWRITTEN),
    "wrong": (TrialStage.CHECK, Reason.WRONG_RESULT),
    "nan": (TrialStage.CHECK, Reason.WRONG_RESULT),
    "wrong_after_many_launches": (TrialStage.TIME, Reason.WRONG_RESULT),
}
"""What each of the faulty ones must be reported as."""


def add_one() -> Workload:
    a = placeholder((SIZE,), "float32", name="A")
    return workload(compute((SIZE,), lambda i: a[i] + 1, name="C"))


def schedule(fault: str, number: int = 0) -> Schedule:
    """``number`` tells equal ones apart."""
    return Schedule.of("hand_made", 1, {"fault": fault, "number": number})


def build(work: Workload, target: Target, chosen: Schedule) -> CompiledKernel:
    del work
    fault = str(chosen["fault"])
    parameters = (KernelParameter("A", "input", (SIZE,), float32), KernelParameter("C", "output", (SIZE,), float32))
    source = Source("cuda-c++", _text(fault, int(str(chosen["number"]))), "entry", parameters, (_grid("good"),))
    binary = backend_for(target).compile(source, target)  # which would refuse the grids that no device takes
    return replace(binary, launches=(_grid(fault),))


def _grid(fault: str) -> LaunchConfig:
    return LaunchConfig(
        "entry",
        (SIZE // THREADS, 1, 1),
        2048 if fault == "too_many_threads" else THREADS,
        cluster=7 if fault == "too_large_a_cluster" else 1,  # no divisor of the blocks
        shared_bytes=(1 << 20) if fault == "too_much_shared" else 0,
        arguments=(0, 1),
    )


def _text(fault: str, number: int) -> str:
    return f"""
__device__ unsigned number = {number}u;
__device__ unsigned flag = 0u;
__device__ unsigned calls = 0u;
__device__ int late = 0;

extern "C" __global__ void entry(const float* A, float* C) {{
  const long long SIZE = {SIZE};
  const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  {BODIES[fault]}
}}
"""
