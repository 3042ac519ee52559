"""What the README says of speed and of benchmarks is what the files say."""

from pathlib import Path

from tilewright.benchmarks.__main__ import SUITES
from tilewright.benchmarks.readme_table import table

README = Path(__file__).parents[1] / "README.md"


def test_the_table_of_results_is_that_of_the_files() -> None:
    assert table() in README.read_text(), "run python -m benchmarks.readme_table and put its table into the README"


def test_it_names_every_suite_of_benchmarks() -> None:
    layout = README.read_text().partition("## Layout")[2]
    assert [suite for suite in SUITES if f"`{suite}`" not in layout] == []
