"""Names are the field's: its words lead to what they name. Words of before stand in the table of old names alone."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.test_layout import NOT_SHIPPED, ROOT, tracked
from tilewright.core.renamed import RENAMED
from tilewright.schedule.sketches import SKETCHES

WORDS = (
    "wgmma",
    "TMA",
    "mbarrier",
    "split_k",
    "stream_k",
    "epilogue",
    "mainloop",
    "ping_pong",
    "swizzle",
    "occupancy",
    "roofline",
    "uniformity",
)
"""A stranger who knows CUTLASS, PTX or Triton greps for these."""
REPLACED = (
    "anatomy",
    "breeding",
    "conduct",
    "convergence",
    "copies_alone",
    "crew",
    "early_blocks",
    "even_shares",
    "evened",
    "finals",
    "in_turn",
    "lane_sums",
    "laps?",
    "posting",
    "rings?",
    "road",
    "roomy",
    "slabs?",
    "station",
    "steadied",
    "usual_plan",
)
"""These were words of our own. Patterns of whole parts of a name."""
TABLE = Path("core/renamed.py")


@cache
def modules() -> tuple[tuple[Path, tuple[ast.AST, ...]], ...]:
    """Every file with all nodes of its tree: to walk a tree takes longer than to parse the file."""
    paths = [p for p in tracked() if p.suffix == ".py" and p.parts[0] not in NOT_SHIPPED]
    return tuple((path, tuple(ast.walk(ast.parse((ROOT / path).read_text())))) for path in paths)


def defined_names(variables: bool) -> Iterator[tuple[str, Path]]:
    """The names of files, classes, functions and knobs; those of ``variables``, constants and fields as well."""
    for path, nodes in modules():
        yield path.stem, path
        for node in nodes:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                yield node.name, path
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and variables:
                yield node.id, path
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Knob":
                first = node.args[0] if node.args else None
                if isinstance(first, ast.Constant):
                    yield str(first.value), path


@cache
def parts_of(name: str) -> str:
    """``ClusterSwizzle`` and ``cluster_swizzle`` are both ``_cluster_swizzle_``."""
    return "_" + re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_") + "_"


def test_words_name_what_they_mean_and_replaced_ones_nothing() -> None:
    """One test, because each process that runs a part of it reads all modules."""
    things = {parts_of(name) for name, _ in defined_names(variables=False)}
    nothing = [word for word in WORDS if not any(f"_{word.lower()}_" in name for name in things)]
    assert not nothing, "nothing is called so"
    replaced = re.compile(f"_({'|'.join(REPLACED)})_")
    names = set(defined_names(variables=True))
    assert not [f"{path}: {name}" for name, path in names if replaced.search(parts_of(name))]


def test_old_names_of_sketches_stand_in_their_table_alone() -> None:
    old = {sketch for sketch, _ in RENAMED} - set(SKETCHES)
    assert len(old) > 10
    found = {
        f"{path}:{node.lineno}: {node.value}"
        for path, nodes in modules()
        if path != TABLE
        for node in nodes
        if isinstance(node, ast.Constant) and node.value in old
    }
    assert not found


def test_no_two_classes_share_a_name() -> None:
    """Private ones neither: a reader who greps for a name finds one thing. ``_Axis`` and ``Axis`` are one name."""
    where: dict[str, list[str]] = {}
    for path, nodes in modules():
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                where.setdefault(node.name.lstrip("_"), []).append(str(path))
    assert not {name: paths for name, paths in where.items() if len(paths) > 1}
