"""The text form of workloads, read back: what is printed, and what people write."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.core.errors import InvalidWorkload
from tilewright.te.build import cast, compute, maximum, placeholder, reduce_axis, workload
from tilewright.te.build import sum as total
from tilewright.te.key import workload_key
from tilewright.te.operators import OPERATORS
from tilewright.te.parse import parse_workload
from tilewright.te.text import workload_text


@pytest.mark.parametrize("name", OPERATORS)
def test_what_is_printed_is_read_back(name: str) -> None:
    for case in OPERATORS[name].few_cases():
        made = OPERATORS[name].workload(case)
        read = parse_workload(workload_text(made))
        assert workload_key(read) == workload_key(made)
        assert workload_text(read) == workload_text(made)


def test_what_people_write() -> None:
    text = """
    # a product with weights that stay
    A: float16[4, 8]
    B: float16[8, 5]      # constant
    C[i, j] = sum over k < 8 of float32(A[i, k]) * float32(B[k, j])
    Y[i, j] = max(C[i, j] * 2, 0)
    """
    a, b = placeholder((4, 8), "float16", "A"), placeholder((8, 5), "float16", "B")
    k = reduce_axis(8, "k")
    c = compute((4, 5), lambda i, j: total(cast(a[i, k], "float32") * cast(b[k, j], "float32"), axis=k), "C")
    y = compute((4, 5), lambda i, j: maximum(c[i, j] * 2.0, 0.0), "Y")
    assert workload_key(parse_workload(text)) == workload_key(workload([y], constants=[b]))


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("(1 - 0.75) * A[i]", "0.25 * A[i]"),
        ("A[i] / (256 * 256)", "A[i] / 65536"),
        ("3 / 4 * A[i]", "0.75 * A[i]"),
        ("A[i] * -(7 // 2 - 7 % 2)", "A[i] * -2"),
        ("A[i + 2 * 2 - 4]", "A[i]"),
    ],
)
def test_numbers_are_combined_before_they_have_a_dtype(written: str, meant: str) -> None:
    read, wanted = (parse_workload(f"A: float32[4]\nB[i < 4] = {body}") for body in (written, meant))
    assert workload_key(read) == workload_key(wanted)


@pytest.mark.parametrize("one_end", ["max(i - 1, 0)", "max(min(i - 1, 3), 0)"])
def test_an_index_may_be_kept_inside_at_the_end_that_it_reaches_beyond(one_end: str) -> None:
    read, both = (parse_workload(f"A: float32[4]\nB[i < 4] = A[{i}]") for i in (one_end, "min(max(i - 1, 0), 3)"))
    assert workload_key(read) == workload_key(both)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the text is empty"),
        ("A: float33[4]", "line 1: 'float33' is no dtype; allowed: float64"),
        ("A = 3", "line 1: 'A = 3' is neither an input"),
        ("A: float32[n, 7]", r"line 1: 'A: float32\[n, 7\]' is neither an input \(A: float32\[4, 8\]\) nor a stage"),
        ("A" * 99, "line 1: 'A{60}…' is neither"),
        (
            "A: float32[4]\nB[] = 2 * sum over k of A[k]",
            "line 2: sum stands inside .*; a reduction is all that a stage is",
        ),
        ("A: float32[4]\nB[] = sum over k A[k]", "line 2: sum stands inside .* has no 'over' or 'of'"),
        ("A: float32[4]\nB[] = sum(A[0])", r"line 2: sum of 1 is no function; .*: C\[i\] = sum over k of A\[i, k\]"),
        ("A: float32[4]\nB[i] = max(A[i])", "line 2: max of 1 is no function; .* a reduction is all"),
        ("A: float32[4]\nB[i] = A[i] + 1e999", "line 2: 1e999 is beyond the largest float; .* write inf"),
        ("A: float32[4]\nB[i] = A[i] + Z[i]", "line 2: Z is not known here; known: A, i"),
        ("A: float32[4]\nB[i, j] = A[i]", r"line 2: how far j goes is not known; write it: \[j < 8\]"),
        ("A: float32[4]\nD: float32[5]\nB[i] = A[i] + D[i]", r"line 3: i could go to 4 \(A\) or 5 \(D\)"),
        ("A: float32[4]\nB[i < 4] = sum over k of A[k]", "line 2: how far k goes is missing"),
        ("A: float32[4]\nB[i < 5] = A[i]", "line 2: "),
        ("A: float32[4]\nB[i] = A[i] + 1 // 0", "line 2: 1 floordiv 0: "),
        ("A: float32[4]\nB[i] = A[i] + " + " * ".join(["9" * 40] * 9), "line 2: .* too large"),
        ("A: float32[4]\nB[i < 4] = A[max(i + 1, 0)]", "line 2: A is read at 1 to 4 along a dimension of 4"),
        ("A: float32[4]\nB[i < 4] = A[min(i - 1, 3)]", "line 2: A is read at -1 to 2 along a dimension of 4"),
        ("A: float32[4]\nB[i] = A[i] $ 2", r"line 2: '\$' has no meaning"),
        ("A: float32[4]\nB[i] = (A[i]", r"line 2: '\)' is missing before the end|line 2: '\)' is missing"),
        ("A: float32[4]\nB[i] = foo(A[i])", "line 2: foo of 1 is no function; allowed: abs"),
        ("A: float32[4]\nB[i] = A[i, i]", "line 2: A has 1 dimensions but is read at 2"),
        ("A: float32[4]\nA: float32[5]", "line 2: A stands in line 1 already"),
        ("A: float32[4]\nB[i] = " + "(" * 5_000 + "A[i]", "line 2: nested deeper than"),
        ("A: float32[4]\nB[i] = " + "+".join(["A[i]"] * 5_000), "line 2: more than 100 operators in a row"),
        ("A: float32[4]\nB[i] = " + "-" * 5_000 + "A[i]", "line 2: nested deeper than"),
    ],
)
def test_a_mistake_is_named_with_its_line(text: str, message: str) -> None:
    with pytest.raises(InvalidWorkload, match=message):
        parse_workload(text)


WORDS = ["A", "B", "i", "k", "[", "]", "(", ")", "=", "<", "+", "-", "4", "1.5", "inf", "0.5f16", "sum over", "of", ":"]
WORDS += ["float32", "select", "max", ",", "#", "\n", "not", "and", "//", " ", "\x00", "é"]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=30).map(" ".join))
def test_no_text_does_anything_but_parse_or_be_refused(words: str) -> None:
    for text in (words, f"A: float32[4]\nB[i < 4] = {words}"):
        try:
            parse_workload(text)
        except InvalidWorkload as error:
            assert error.message
