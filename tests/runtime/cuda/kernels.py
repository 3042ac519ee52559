"""Kernels for the tests of CUDA devices, some written in CUDA C++ because no correct IR could do what they do."""

from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.codegen.backend import CompiledKernel, KernelParameter, LaunchConfig, Source
from tilewright.codegen.cuda.compile.compiler import compile_source
from tilewright.core.dtypes import float32
from tilewright.core.target import Target
from tilewright.ir.buffer import Buffer
from tilewright.ir.build import Writer
from tilewright.ir.expr import Expr, Load, Var
from tilewright.ir.stmt import HardwareAxis, Kernel
from tilewright.te.workload import Axis, Stage, Workload

SHAPE = (37, 64)
COUNT = 1024

TEXT = r"""
extern "C" __global__ void add_one(const float* x, float* y)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = x[i] + 1.0f;
}
extern "C" __global__ void add_first(const float* x, float* y) { y[threadIdx.x] += x[0]; }
extern "C" __global__ void cluster_size(const float* x, float* y)
{
    unsigned blocks = 1;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(blocks));
#endif
    y[blockIdx.x * blockDim.x + threadIdx.x] = (float)blocks;
}
extern "C" __global__ void through_shared(const float* x, float* y)
{
    extern __shared__ float staged[];
    unsigned size;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(size));
    float* last = staged + size / 4 - blockDim.x;
    last[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = last[blockDim.x - 1 - threadIdx.x];
}
extern "C" __global__ void illegal(const float* x, float* y) { y[(1ull << 40) + threadIdx.x] = x[0]; }
extern "C" __global__ void misaligned(const float* x, float* y) { *(float*)((char*)y + 2) = x[0]; }
extern "C" __global__ void trap(const float* x, float* y) { asm("trap;"); }
"""


def target() -> Target:
    return Target("cuda", "sm_90a", (), threads=132, vector_bytes=16)


def binary(function: str, on: Target, blocks: int = 1, threads: int = COUNT, **grid: Any) -> CompiledKernel:
    """One launch of a function of ``TEXT`` on float32 X and Y of ``COUNT`` elements, asking for anything."""
    parameters = (KernelParameter("X", "input", (COUNT,), float32), KernelParameter("Y", "output", (COUNT,), float32))
    launches = (LaunchConfig(function, (blocks, 1, 1), threads, arguments=(0, 1), **grid),)
    compiled = compile_source(Source("cuda-c++", TEXT, "unit", parameters), on)
    return replace(compiled, entry=function, launches=launches)


def workload() -> Workload:
    """``T = A + B; C = T * 2; D = T - 1`` on float32[37, 64]: two outputs, T in the workspace."""
    a, b, t, c, d = (Buffer(name, SHAPE, float32) for name in "ABTCD")

    def stage(tensor: Buffer, i: str, j: str, value: Expr) -> Stage:
        return Stage(tensor, (Axis(i, SHAPE[0]), Axis(j, SHAPE[1])), value)

    i, j, k, p, m, n = (Var(name) for name in "ijkpmn")
    stages = (
        stage(t, "i", "j", Load(a, (i, j)) + Load(b, (i, j))),
        stage(c, "k", "p", Load(t, (k, p)) * 2.0),
        stage(d, "m", "n", Load(t, (m, n)) - 1.0),
    )
    return Workload((a, b), stages, ("C", "D"))


def two_launches() -> Kernel:
    """``workload`` in two launches with T between them."""
    a, b, t, c, d = (Buffer(name, SHAPE, float32) for name in "ABTCD")
    w = Writer()
    rows, columns = SHAPE
    with w.launch("sum", (("i", rows, HardwareAxis.GRID_X), ("j", columns, HardwareAxis.THREAD))) as at:
        w.store(t, at, Load(a, at) + Load(b, at))
    with w.launch("both", (("k", rows, HardwareAxis.GRID_X), ("l", columns, HardwareAxis.THREAD))) as at:
        w.store(c, at, Load(t, at) * 2.0)
        w.store(d, at, Load(t, at) - 1.0)
    return Kernel("two_launches", (a, b), (c, d), (t,), w.finish())


def data(seed: int = 0) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.float32]], ...]:
    """A and B of ``workload``."""
    generator = np.random.Generator(np.random.PCG64(seed))
    return tuple(generator.uniform(-1, 1, SHAPE).astype(np.float32) for _ in range(2))
