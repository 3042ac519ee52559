"""The root folder is the package: what ships, where things may stand, and what the tree must not hold."""

import ast
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOT_SHIPPED = {"tests", "benchmarks", "examples", "docs", "deploy", "requirements", "build", "dist", "node_modules"}


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    return [Path(line) for line in listed.stdout.splitlines() if (ROOT / line).is_file()]


def packages() -> set[str]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return set(tomllib.load(file)["tool"]["setuptools"]["packages"])


def test_every_folder_with_code_is_listed_and_every_listed_one_exists() -> None:
    folders = {p.parent for p in tracked() if p.suffix == ".py" and p.parts[0] not in NOT_SHIPPED}
    names = {".".join(["tilewright", *f.parts]) for f in folders}
    assert names == packages()


def test_every_shipped_folder_says_what_it_is() -> None:
    for name in packages():
        init = ROOT.joinpath(*name.split(".")[1:]) / "__init__.py"
        assert init.read_text().startswith('"""'), f"{init} has no docstring"


def test_no_module_strays_into_the_root() -> None:
    assert [p.name for p in tracked() if len(p.parts) == 1 and p.suffix == ".py"] == ["__init__.py"]


def test_the_product_imports_itself_relatively() -> None:
    """The root folder may have any name, that of the package too. A linter that goes by folders cannot tell.
    Migrations are loaded by their files, as parts of no package, and so is the package's own file by pytest where the
    folder's name is none that Python can import (``tilewright-main``)."""
    product = (
        p
        for p in tracked()
        if p.suffix == ".py" and p.parts[0] not in (*NOT_SHIPPED, "__init__.py") and "versions" not in p.parts
    )
    naming = {p: text for p in product if "tilewright" in (text := (ROOT / p).read_text())}
    absolute = [str(p) for p, text in naming.items() if "tilewright" in _imported(ast.parse(text))]
    assert not absolute


def _imported(module: ast.Module) -> set[str]:
    """The packages that a module imports absolutely."""
    found: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.add(node.module.partition(".")[0])
    return found


def test_source_files_stay_small() -> None:
    long = {str(p): n for p in tracked() if p.suffix == ".py" and (n := len((ROOT / p).read_text().splitlines())) > 600}
    assert not long, f"over 600 lines: {long}"


def test_nothing_tracked_is_large() -> None:
    large = [str(p) for p in tracked() if (ROOT / p).stat().st_size > 1_000_000]
    assert not large


def test_locks_hold_hashes_and_no_addresses() -> None:
    for lock in (*(ROOT / "requirements").glob("*.txt"), ROOT / "api" / "package-lock.json"):
        text = lock.read_text()
        assert "://" not in text, f"{lock.name} holds an address"
        assert "sha" in text


def test_the_type_checkers_link_leads_to_the_root() -> None:
    assert (ROOT / ".typing" / "tilewright").resolve() == ROOT.resolve()
