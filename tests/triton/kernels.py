"""Triton kernels as their authors submit them: JSON that needs no Triton here."""

from typing import Any

PRELUDE = "import triton\nimport triton.language as tl\n\n\n"

ADD = (
    PRELUDE
    + '''@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Add two vectors."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = place < n
    tl.store(out_ptr + place, tl.load(x_ptr + place, mask=mask) + tl.load(y_ptr + place, mask=mask), mask=mask)
'''
)

HELPED = (
    PRELUDE
    + """SCALE = tl.constexpr(2.0)


@triton.jit
def doubled(x):
    return x * SCALE


@triton.jit
def double(x_ptr, out_ptr, n, BLOCK: tl.constexpr, TYPE: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + place, mask=place < n).to(TYPE)
    tl.store(out_ptr + place, doubled(x), mask=place < n)
"""
)


def add_workload(n: int = 4096, version: str = "3.6.0", **changes: Any) -> dict[str, Any]:
    """The JSON of a vector sum with three configurations."""
    pointers = [("x_ptr", "read"), ("y_ptr", "read"), ("out_ptr", "write")]
    data: dict[str, Any] = {
        "kind": "triton",
        "version": version,
        "source": ADD,
        "name": "add",
        "arguments": [
            *({"pointer": p, "dtype": "float32", "elements": n, "access": access} for p, access in pointers),
            {"scalar": "n", "type": "i32", "value": n},
        ],
        "constants": {},
        "grid": ["cdiv(n, BLOCK)"],
        "configurations": [
            {"BLOCK": 128, "num_warps": 4},
            {"BLOCK": 512, "num_warps": 4},
            {"BLOCK": 1024, "num_warps": 8},
        ],
    }
    return {**data, **changes}
