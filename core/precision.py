"""Which roundings a kernel may make in sums of products, beyond those of the dtypes.

A workload has one precision. It is a permission: a kernel that rounds less is right too. Nothing but the workload
chooses it, and it is part of the workload's identity.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Precision:
    """``factor_error``: the relative error of a product of float32 factors, besides its own rounding.
    ``part``: the dtype of the parts that a float32 factor is split into; empty where it stays whole. ``planes``: how
    many parts there are. ``pairs``: which parts of A and B are
    multiplied, the smallest products first; parts are numbered from the greatest on."""

    name: str
    meaning: str
    factor_error: float = 0.0
    part: str = ""
    planes: int = 0
    pairs: tuple[tuple[int, int], ...] = ()


def _pairs(planes: int, last: int) -> tuple[tuple[int, int], ...]:
    """Return all pairs of parts whose numbers add up to ``last`` at most, from the smallest products on."""
    every = [(a, b) for a in range(planes) for b in range(planes) if a + b <= last]
    return tuple(sorted(every, key=lambda pair: (-sum(pair), pair)))


PRECISIONS: dict[str, Precision] = {
    p.name: p
    for p in (
        Precision("ieee", "products and sums as exact as the dtypes are"),
        Precision("tf32", "factors of float32 have 10 bits of mantissa", 2.0**-11, "tfloat32", 1, ((0, 0),)),
        Precision(
            "tf32x3", "factors are split into two TF32 numbers, three products", 2.0**-22, "tfloat32", 2, _pairs(2, 1)
        ),
        Precision(
            "bf16x6",
            "factors are split into three bfloat16 numbers, six products",
            2.0**-22,
            "bfloat16",
            3,
            _pairs(3, 2),
        ),
        Precision(
            "bf16x9",
            "factors are split into three bfloat16 numbers, nine products",
            2.0**-24,
            "bfloat16",
            3,
            _pairs(3, 4),
        ),
        Precision(
            "fast_accumulation", "sums of products of floats of 8 or 4 bits stay in the accumulators of matrix units"
        ),
    )
}
"""Name -> precision. The names for float32 are those of Triton's ``input_precision``."""
IEEE = "ieee"
TF32 = "tf32"
