# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Kernels as users write them, under ``triton.jit``. Only programs that have Triton import this."""

import triton
import triton.language as tl

SLOPE = tl.constexpr(0.25)
NEGATIVE = tl.constexpr(0.0)


@triton.jit
def leaky(x):
    return tl.where(x >= NEGATIVE, x, SLOPE * x)


@triton.jit
def keep(pointer, value, mask):
    tl.store(pointer, value, mask=mask)


@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr, ACTIVATION: tl.constexpr = ""):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = place < n
    total = tl.load(x_ptr + place, mask=mask) + tl.load(y_ptr + place, mask=mask)
    if ACTIVATION == "leaky":
        total = leaky(total)
    keep(out_ptr + place, total, mask)


@triton.jit
def matmul(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    rows, columns = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    group = pid // (GROUP_M * columns)
    first = group * GROUP_M
    height = min(rows - first, GROUP_M)
    row = first + (pid % (GROUP_M * columns)) % height
    column = (pid % (GROUP_M * columns)) // height
    m = (row * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    n = (column * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + m[:, None] * stride_am + k[None, :] * stride_ak
    b_ptrs = b_ptr + k[:, None] * stride_bk + n[None, :] * stride_bn
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(0, tl.cdiv(K, BLOCK_K)):
        a = tl.load(a_ptrs, mask=k[None, :] < K - step * BLOCK_K, other=0.0)
        b = tl.load(b_ptrs, mask=k[:, None] < K - step * BLOCK_K, other=0.0)
        total = tl.dot(a, b, total)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    m = row * BLOCK_M + tl.arange(0, BLOCK_M)
    n = column * BLOCK_N + tl.arange(0, BLOCK_N)
    c_ptrs = c_ptr + stride_cm * m[:, None] + stride_cn * n[None, :]
    tl.store(c_ptrs, total.to(tl.float16), mask=(m[:, None] < M) & (n[None, :] < N))


@triton.jit
def softmax(out_ptr, in_ptr, rows, columns, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    for n in range(ROWS):
        row = tl.program_id(0) * ROWS + n
        place = tl.arange(0, WIDTH)
        mask = (place < columns) & (row < rows)
        x = tl.load(in_ptr + row * columns + place, mask=mask, other=-float("inf"))
        e = tl.exp(x - tl.max(x, axis=0))
        tl.store(out_ptr + row * columns + place, e / tl.sum(e, axis=0), mask=mask)


MATMUL_CONFIGS = [
    triton.Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP_M": 8}, num_warps=warps, num_stages=stages)
    for m, n, k, warps, stages in (
        (32, 32, 32, 4, 2),
        (64, 64, 32, 4, 4),
        (128, 64, 32, 4, 4),
        (128, 128, 32, 8, 3),
        (128, 128, 64, 8, 4),
        (128, 256, 64, 8, 3),
    )
]
ADD_CONFIGS = [triton.Config({"BLOCK": block}, num_warps=4) for block in (128, 512, 1024)]
