"""A table whose entries are loaded when they are used: a process then loads only the modules that it needs."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import TypeVar

T = TypeVar("T")


class LazyTable(Mapping[str, T]):
    """The names are known at once; ``load`` gives the entry of a name, when that is asked for first."""

    def __init__(self, names: Iterable[str], load: Callable[[str], T]) -> None:
        self._names = dict.fromkeys(names)
        self._load = cache(load)

    def __getitem__(self, name: str) -> T:
        if name not in self._names:
            raise KeyError(name)
        return self._load(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
