"""C++ text: lines with their indentation, and expressions that know when they need parentheses."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum


class Level(IntEnum):
    """How tightly the outermost operator of a C++ expression binds; smaller is tighter."""

    ATOM = 0
    UNARY = 1
    PRODUCT = 2
    SUM = 3
    SHIFT = 4
    ORDER = 5
    EQUALITY = 6
    BITS = 7
    AND = 8
    OR = 9
    CHOICE = 10


@dataclass(frozen=True, slots=True)
class Value:
    """A C++ expression without side effects: its text, its C++ type, and its outermost operator."""

    text: str
    type: str
    level: Level = Level.ATOM

    def within(self, level: Level) -> str:
        """The text as an operand that must bind at least as tightly as ``level``."""
        return self.text if self.level <= level else f"({self.text})"

    @property
    def atom(self) -> str:
        return self.within(Level.ATOM)

    @property
    def unary(self) -> str:
        return self.within(Level.UNARY)


def call(function: str, type: str, *arguments: Value | str) -> Value:
    """``function(arguments)``."""
    given = ", ".join(a if isinstance(a, str) else a.text for a in arguments)
    return Value(f"{function}({given})", type)


def converted(value: Value, type: str) -> Value:
    """``(type)value``; the value itself where it has that type."""
    return value if value.type == type else Value(f"({type}){value.unary}", type, Level.UNARY)


def infix(a: Value, operator: str, b: Value, type: str, level: Level) -> Value:
    """``a operator b``, grouped to the left; sums and products that are shifted or masked get parentheses."""
    if level in (Level.SHIFT, Level.BITS):
        return Value(f"{a.unary} {operator} {b.unary}", type, level)
    return Value(f"{a.within(level)} {operator} {b.within(Level(level - 1))}", type, level)


@dataclass(slots=True)
class Text:
    """Lines of one block of statements."""

    lines: list[str] = field(default_factory=list)

    def line(self, text: str) -> None:
        self.lines.append(text)

    def append(self, other: "Text") -> None:
        """The lines of ``other``, as they are."""
        self.lines.extend(other.lines)

    @contextmanager
    def block(self, header: str, after: str = "") -> "Iterator[Text]":
        """``header { … } after``; what is written to the text given goes inside."""
        inner = Text()
        yield inner
        self.line(f"{header} {{")
        self.lines.extend(f"  {line}" for line in inner.lines)
        self.line(f"}}{after}")
