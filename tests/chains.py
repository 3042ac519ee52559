"""Sums of products of several tensors, written as torch writes an einsum, and random ones of them."""

from collections.abc import Mapping, Sequence

from tilewright.core.streams import stream
from tilewright.ir.expr import Expr
from tilewright.te import build as te
from tilewright.te.workload import Workload

EXTENTS = (1, 2, 3, 5, 7, 8, 12, 16, 17)
DTYPES = ("float32", "float32", "float16", "bfloat16", "float64", "int32", "int8")
ACCUMULATORS = {"float16": "float32", "bfloat16": "float32", "int8": "int32"}


def einsum(
    equation: str,
    extents: Mapping[str, int],
    dtype: str = "float32",
    *,
    scale: float = 1.0,
    relu: bool = False,
    masked: bool = False,
    precision: str = "ieee",
) -> Workload:
    """``torch.einsum(equation)`` as one sum, times ``scale``. ``relu``: of the sum and a further input of its shape.
    ``masked``: the first factor counts only where its last index is not above its first one."""
    terms, result = equation.split("->")[0].split(","), equation.split("->")[1]
    wide = ACCUMULATORS.get(dtype, dtype)
    tensors = [te.placeholder([extents[t] for t in term], dtype, f"X{n}") for n, term in enumerate(terms)]
    reduced = {t: te.reduce_axis(extents[t], t) for t in dict.fromkeys("".join(terms)) if t not in result}

    def body(*at: Expr) -> te.Reduction:
        place: dict[str, Expr] = {**dict(zip(result, at, strict=True)), **reduced}
        factors: list[Expr] = [
            te.cast(x[tuple(place[t] for t in term)], wide) for x, term in zip(tensors, terms, strict=True)
        ]
        if masked:
            inside = place[terms[0][-1]] <= place[terms[0][0]]
            factors[0] = te.select(inside, factors[0], te.constant(0, wide))
        product = factors[0] if scale == 1.0 else te.constant(scale, wide) * factors[0]
        for factor in factors[1:]:
            product = product * factor
        return te.sum(product, axis=tuple(reduced.values()))

    shape = [extents[t] for t in result]
    total = te.compute(shape, body, "total", axes=list(result))
    if not relu:
        return te.workload(total, inputs=tensors, precision=precision)
    bias = te.placeholder(shape, wide, "bias")
    y = te.compute(shape, lambda *at: te.maximum(total[at] + bias[at], te.constant(0, wide)), "y", axes=list(result))
    return te.workload(y, inputs=[*tensors, bias], precision=precision)


def random_chain(seed: int) -> Workload:
    """A random einsum of three or four operands with extents of 1 and primes, some scaled, masked or behind a relu."""
    draw = stream(seed, "random_chain")

    def choice(things: Sequence[str]) -> str:
        return things[int(draw.integers(len(things)))]

    letters, count = "ijklmn"[: int(draw.integers(3, 7))], int(draw.integers(3, 5))
    terms = ["".join(draw.permutation(list(letters))[: int(draw.integers(1, 4))]) for _ in range(count)]
    used = "".join(dict.fromkeys("".join(terms)))
    result = "".join(t for t in used if draw.random() < 0.4)[:3]
    if len(set(used) - set(result)) < 1:
        result = result[1:]
    dtype = choice(DTYPES)
    wide = ACCUMULATORS.get(dtype, dtype)
    return einsum(
        f"{','.join(terms)}->{result}",
        {t: EXTENTS[int(draw.integers(len(EXTENTS)))] for t in used},
        dtype,
        scale=0.5 if wide.startswith("float") and draw.random() < 0.3 else 1.0,
        relu=bool(draw.random() < 0.3),
        masked=bool(draw.random() < 0.3),
        precision="tf32" if wide == "float32" and draw.random() < 0.3 else "ieee",
    )
