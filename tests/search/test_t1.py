"""Spaces in the T1 form: legal settings are those that keep the conditions, in and out."""

import json
from pathlib import Path

import numpy as np
import pytest

from tilewright.core.errors import InvalidParameter
from tilewright.search.recorded import read_table
from tilewright.search.t1 import read_t1, write_t1

CONVOLUTION = {
    "block_size_x": list(range(16, 257, 16)), "block_size_y": [1, 2, 4, 8, 16], "tile_size_x": [1, 2, 3, 4],
    "tile_size_y": [1, 2, 3, 4], "read_only": [0, 1], "use_padding": [0, 1], "use_shmem": [0, 1], "use_cmem": [1],
    "filter_height": [15], "filter_width": [15],
}  # fmt: skip
CONDITIONS = (
    "use_padding==0 or block_size_x % 32 != 0",
    "block_size_x*block_size_y<=1024",
    "use_padding==0 or use_shmem != 0",
    "use_shmem == 0 or (((block_size_x*tile_size_x+(filter_width-1)))*((block_size_y*tile_size_y+(filter_height-1))))"
    " < 12*1024",
)
TABLE = Path(__file__).parents[1] / "data" / "hub_convolution_milo__A100.csv"


def description(tmp_path: Path, *conditions: str) -> Path:
    parameters = [{"Name": n, "Type": "int", "Values": str(v), "Default": v[0]} for n, v in CONVOLUTION.items()]
    space = {"TuningParameters": parameters, "Conditions": [{"Expression": c, "Parameters": []} for c in conditions]}
    path = tmp_path / "convolution.json"
    path.write_text(json.dumps({"ConfigurationSpace": space, "KernelSpecification": {"KernelName": "convolution"}}))
    return path


def test_a_description_has_every_setting_that_was_recorded(tmp_path: Path) -> None:
    space, conditions = read_t1(description(tmp_path, *CONDITIONS))
    assert conditions == CONDITIONS and space.sketch == "convolution"
    recorded = read_table(TABLE).space
    columns = [knob.name for knob in space.knobs]
    described = {tuple(int(space.column(name)[row]) for name in columns) for row in range(len(space))}
    names = {knob.name for knob in recorded.knobs}
    told = [recorded.column(n) if n in names else np.full(len(recorded), CONVOLUTION[n][0]) for n in columns]
    assert {tuple(map(int, row)) for row in zip(*told, strict=True)} <= described


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    space, conditions = read_t1(description(tmp_path, *CONDITIONS))
    write_t1(tmp_path / "copy.json", space, conditions)
    again, same = read_t1(tmp_path / "copy.json")
    assert same == conditions and [k.values for k in again.knobs] == [k.values for k in space.knobs]
    assert np.array_equal(again.codes, space.codes)
    with pytest.raises(InvalidParameter, match="conditions that exactly the settings"):
        write_t1(tmp_path / "wrong.json", space, conditions[:2])


@pytest.mark.parametrize(
    "condition", ["__import__('os')", "block_size_x.real > 1", "unknown > 1", "block_size_x >", "[1 for x in 'ab']"]
)
def test_a_condition_that_is_more_than_arithmetic_is_refused(tmp_path: Path, condition: str) -> None:
    with pytest.raises(InvalidParameter, match="condition"):
        read_t1(description(tmp_path, condition))


def test_what_is_no_description_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for wrong in ("no JSON", "[]", '{"ConfigurationSpace": {"TuningParameters": [{"Name": "a", "Values": "[1.5]"}]}}'):
        path.write_text(wrong)
        with pytest.raises(InvalidParameter, match="T1"):
            read_t1(path)
