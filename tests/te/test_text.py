"""The text form of workloads."""

from tests.golden import check_golden
from tilewright.te.operators import OPERATORS
from tilewright.te.text import workload_text


def test_operators_read_well() -> None:
    texts = [
        f"-- {name}\n{workload_text(OPERATORS[name].workload(OPERATORS[name].examples[0]))}"
        for name in sorted(OPERATORS)
    ]
    check_golden("te/golden/operators.txt", "\n".join(texts))
