import pytest

from tilewright.core.lazy_table import LazyTable


def test_entries_are_loaded_once_when_they_are_asked_for() -> None:
    loaded: list[str] = []

    def load(name: str) -> int:
        loaded.append(name)
        return len(name)

    table = LazyTable(["two", "three"], load)
    assert list(table) == ["two", "three"] and len(table) == 2 and "two" in table and "four" not in table
    assert loaded == []
    assert table["three"] == table["three"] == 5 and loaded == ["three"]
    assert list(table.values()) == [3, 5] and loaded == ["three", "two"]
    with pytest.raises(KeyError):
        table["four"]
    assert table.get("four") is None and loaded == ["three", "two"]
