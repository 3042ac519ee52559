"""Golden texts: what a test prints, kept in a file beside it and compared byte for byte."""

import difflib
import os
from pathlib import Path

import pytest


def check_golden(name: str, text: str) -> None:
    """Compare ``text`` with the committed file ``tests/NAME`` (for example ``ir/golden/matmul.txt``).

    With ``TILEWRIGHT_UPDATE_GOLDEN=1`` in the environment the file is written instead. Fails with a diff when
    they differ, and when there is no such file yet.
    """
    path = Path(__file__).parent / name
    text = text.rstrip("\n") + "\n"
    if os.environ.get("TILEWRIGHT_UPDATE_GOLDEN") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return
    hint = "run the test with TILEWRIGHT_UPDATE_GOLDEN=1 and look at the change"
    if not path.exists():
        pytest.fail(f"no golden file tests/{name}; {hint}\n{text}", pytrace=False)
    kept = path.read_text(encoding="utf-8")
    if kept != text:
        lines = difflib.unified_diff(kept.splitlines(), text.splitlines(), f"tests/{name}", "now", lineterm="")
        pytest.fail("\n".join([f"differs from the golden file; {hint}", *lines]), pytrace=False)
