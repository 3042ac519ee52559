"""The dashboard's scripts come from npm by integrity hash, and nothing of them is committed."""

import json
from pathlib import Path

import pytest

from tilewright.api import assets


def test_the_lock_has_hashes_and_no_addresses() -> None:
    text = (assets.HERE / "package-lock.json").read_text()
    packages = {name: entry for name, entry in json.loads(text)["packages"].items() if name}
    assert set(packages) == {f"node_modules/{name}" for name in ("axe-core", "echarts", "htmx.org", "tslib", "zrender")}
    assert all(entry["integrity"].startswith("sha512-") for entry in packages.values())
    assert "http" not in text and "resolved" not in text


def test_install_copies_what_the_hashes_say(tmp_path: Path) -> None:
    vendor = tmp_path / "static" / "vendor"
    assert not assets.assets_present(vendor)
    sums = assets.install_assets(vendor)
    assert assets.assets_present(vendor)
    assert sums == {script.name: script.sha256 for script in assets.SCRIPTS}
    assert {"echarts-LICENSE.txt", "zrender-LICENSE.txt", "htmx.org-LICENSE.txt"} <= {f.name for f in vendor.iterdir()}


def test_a_failing_npm_leaves_what_is_there(tmp_path: Path) -> None:
    vendor = tmp_path / "vendor"
    vendor.mkdir()
    (vendor / "kept").touch()
    with pytest.raises(assets.AssetError, match="npm ci failed"):
        assets.install_assets(vendor, npm=["false"])
    assert (vendor / "kept").exists()
