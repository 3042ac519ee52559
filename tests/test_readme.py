"""What the README says of speed is what the files of results say."""

from pathlib import Path

from tilewright.benchmarks.readme_table import table

README = Path(__file__).parents[1] / "README.md"


def test_the_table_of_results_is_that_of_the_files() -> None:
    assert table() in README.read_text(), "run python -m benchmarks.readme_table and put its table into the README"
