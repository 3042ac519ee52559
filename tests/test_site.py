"""The documentation builds as pages, without a warning, and tells of every operator, sketch and route."""

import json
import re
from pathlib import Path

import pytest

from tilewright.api.openapi import DOCUMENT
from tilewright.schedule.sketches import SKETCHES
from tilewright.te.operators import OPERATORS

ROOT = Path(__file__).parents[1]
ARCHITECTURE = ROOT / "docs" / "architecture.md"


def test_the_site_builds_strictly_and_its_reference_is_complete(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path), strict=True)
    build(config)  # raises Abort for a warning, such as a link that leads nowhere
    operators, knobs, api = ((tmp_path / name / "index.html").read_text() for name in ("operators", "knobs", "api"))
    assert all(f'<h2 id="{name}">' in operators for name in OPERATORS)
    assert [name for name in SKETCHES if f'<h2 id="{name}">' not in knobs] == []
    assert all(path in api for path in json.loads(DOCUMENT.read_text())["paths"])
    pages = list(tmp_path.rglob("*.html"))
    assert all("https://cdn" not in page.read_text() for page in pages), "pages need no other host"


def test_the_map_of_kernel_classes_is_that_of_the_tree() -> None:
    """Where the architecture lists the parts of a folder, all of them are there, and no kernel class is left out."""
    lists = re.findall(
        r"^    (schedule/\w+/) +((?:\w+ *)+(?:\n {27}(?:\w+ *)+)*)$", ARCHITECTURE.read_text(), re.MULTILINE
    )
    listed = {folder: words.split() for folder, words in lists}
    assert listed.keys() == {"schedule/problems/", "schedule/gpu/", "schedule/cpu/", "schedule/space/"}
    for folder, names in listed.items():
        there = {path.stem for path in (ROOT / folder).iterdir()}
        assert [name for name in names if name not in there] == [] and len(names) == len(set(names))
    for folder in ("schedule/gpu/", "schedule/cpu/"):
        classes = {path.parent.name for path in (ROOT / folder).glob("*/__init__.py")}
        assert classes == set(listed[folder])
