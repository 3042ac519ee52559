"""Files of the cache folder are whole, whatever becomes of the process that writes them."""

from pathlib import Path

import pytest

from tilewright.core.cache_folder import cache_folder, write_atomically


def test_a_file_is_replaced_as_a_whole_and_nothing_is_left_behind(tmp_path: Path) -> None:
    path = tmp_path / "made" / "entry"
    write_atomically(path, b"first")
    write_atomically(path, b"second")
    assert path.read_bytes() == b"second" and [entry.name for entry in path.parent.iterdir()] == ["entry"]


def test_what_cannot_be_moved_into_place_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "entry").mkdir()
    with pytest.raises(OSError):
        write_atomically(tmp_path / "entry", b"data")
    assert [entry.name for entry in tmp_path.iterdir()] == ["entry"]


def test_the_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder("peaks") == tmp_path / "tilewright" / "peaks"
