"""Operation and byte counts follow the field's conventions."""

from tilewright.ir.expr import Expr
from tilewright.te.build import compute, maximum, placeholder, reduce_axis, within, workload
from tilewright.te.build import sum as total
from tilewright.te.cost import flops, minimum_bytes
from tilewright.te.operators import OPERATORS


def test_a_matrix_product_is_2mnk() -> None:
    w = OPERATORS["matmul"].workload({"m": 7, "n": 5, "k": 3})
    assert flops(w) == 2 * 7 * 5 * 3
    assert minimum_bytes(w) == 4 * (7 * 3 + 3 * 5 + 7 * 5)


def test_elementwise_counts_each_function_once_and_no_indices() -> None:
    x = placeholder((10, 6), "float32", "x")
    w = workload([compute((10, 3), lambda i, j: maximum(x[i, j * 2 + 1] * 2.0, 0.0) + 1.0)])
    assert flops(w) == 3 * 30
    assert minimum_bytes(w) == 4 * (60 + 30)


def test_an_input_that_nobody_reads_is_not_moved() -> None:
    x, y = placeholder((8,), "float32", "x"), placeholder((8,), "float32", "y")
    k = reduce_axis(8)
    w = workload([compute((), lambda: total(x[k], axis=k))], inputs=[x, y])
    assert minimum_bytes(w) == 4 * 8 + 4
    assert flops(w) == 8


def test_bytes_of_rows_that_are_read() -> None:
    """Every fourth row of ``x``, each row of the table that an index names, and each element of ``a`` once."""
    x, table = placeholder((64, 8), "float32", "x"), placeholder((1000, 8), "float32", "table")
    rows, a = placeholder((3,), "int32", "rows"), placeholder((3,), "float32", "a")

    def body(i: Expr, j: Expr) -> Expr:
        return x[i * 4, j] + table[within(rows[i], 1000), j] + a[i] * a[2 - i]

    assert minimum_bytes(workload([compute((3, 8), body)])) == 4 * (24 + 24 + 3 + 3 + 24)


def test_a_gather_along_rows_reads_sectors() -> None:
    """One element of each of three rows of 8,000 bytes, in 32 bytes that memory gives at once."""
    table, columns = placeholder((3, 2000), "float32", "table"), placeholder((3,), "int32", "columns")
    w = workload([compute((3,), lambda i: table[i, within(columns[i], 2000)])])
    assert minimum_bytes(w) == 3 * 32 + 4 * 3 + 4 * 3
