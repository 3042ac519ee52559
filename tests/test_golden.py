"""The golden helper itself: it writes on request, passes on equality, fails on a difference."""

from pathlib import Path

import pytest

from tests import golden


def test_golden_round_trip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(golden, "__file__", str(tmp_path / "golden.py"))
    monkeypatch.delenv("TILEWRIGHT_UPDATE_GOLDEN", raising=False)
    with pytest.raises(pytest.fail.Exception, match="no golden file"):
        golden.check_golden("a/b.txt", "one\ntwo")
    monkeypatch.setenv("TILEWRIGHT_UPDATE_GOLDEN", "1")
    golden.check_golden("a/b.txt", "one\ntwo")
    monkeypatch.delenv("TILEWRIGHT_UPDATE_GOLDEN")
    golden.check_golden("a/b.txt", "one\ntwo\n")
    with pytest.raises(pytest.fail.Exception, match=r"\+three"):
        golden.check_golden("a/b.txt", "one\nthree")
