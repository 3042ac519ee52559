"""Builds C++ text: expressions that know when they need parentheses, and indented lines of statements."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum

from ....ir.stmt import Stmt


class Precedence(IntEnum):
    """The precedence of a C++ operator is named as in the grammar of the C++ standard. A smaller one binds more
    tightly."""

    PRIMARY = 0
    UNARY = 1
    MULTIPLICATIVE = 2
    ADDITIVE = 3
    SHIFT = 4
    RELATIONAL = 5
    EQUALITY = 6
    BITWISE = 7
    LOGICAL_AND = 8
    LOGICAL_OR = 9
    CONDITIONAL = 10


@dataclass(frozen=True, slots=True)
class CppValue:
    """A C++ expression without side effects: its text, its C++ type, and the precedence of its outermost operator."""

    text: str
    type: str
    precedence: Precedence = Precedence.PRIMARY

    def within(self, precedence: Precedence) -> str:
        """Return the text as an operand that must bind at least as tightly as ``precedence``."""
        return self.text if self.precedence <= precedence else f"({self.text})"

    @property
    def primary(self) -> str:
        """Return the text as an operand that any operator may be applied to."""
        return self.within(Precedence.PRIMARY)

    @property
    def unary(self) -> str:
        """Return the text as the operand of a unary operator or a cast."""
        return self.within(Precedence.UNARY)


def call(function: str, type: str, *arguments: CppValue | str) -> CppValue:
    """Return ``function(arguments)``."""
    given = ", ".join(a if isinstance(a, str) else a.text for a in arguments)
    return CppValue(f"{function}({given})", type)


def converted(value: CppValue, type: str) -> CppValue:
    """Return ``(type)value``, or ``value`` itself where it has that type."""
    return value if value.type == type else CppValue(f"({type}){value.unary}", type, Precedence.UNARY)


def infix(a: CppValue, operator: str, b: CppValue, type: str, precedence: Precedence) -> CppValue:
    """Return ``a operator b``, which groups to the left. Operands of shifts and masks get parentheses for readers,
    too."""
    if precedence in (Precedence.SHIFT, Precedence.BITWISE):
        return CppValue(f"{a.unary} {operator} {b.unary}", type, precedence)
    return CppValue(f"{a.within(precedence)} {operator} {b.within(Precedence(precedence - 1))}", type, precedence)


def conditional(test: CppValue, then: CppValue, otherwise: CppValue, type: str) -> CppValue:
    """Return ``test ? then : otherwise``."""
    operands = (v.within(Precedence.LOGICAL_OR) for v in (test, then, otherwise))
    return CppValue("{} ? {} : {}".format(*operands), type, Precedence.CONDITIONAL)


@dataclass(slots=True)
class CppText:
    """The lines of one block of statements, without the indentation of the block. ``origins`` has the statement of the
    kernel that each line was written for, or None where that is not known yet."""

    lines: list[str] = field(default_factory=list)
    origins: list[Stmt | None] = field(default_factory=list)

    def line(self, text: str, origin: Stmt | None = None) -> None:
        self.lines.append(text)
        self.origins.append(origin)

    def append(self, other: "CppText", indentation: str = "") -> None:
        """Add the lines of ``other``, with ``indentation`` ahead of each."""
        self.lines.extend(f"{indentation}{line}" for line in other.lines)
        self.origins.extend(other.origins)

    def note_origin(self, first: int, stmt: Stmt) -> None:
        """Note that lines from the number ``first`` on were written for ``stmt``, unless that is known better."""
        self.origins[first:] = [stmt if known is None else known for known in self.origins[first:]]

    @contextmanager
    def block(self, header: str, after: str = "") -> "Iterator[CppText]":
        """Write ``header { … } after``. What is written to the text that this yields stands between the braces."""
        inner = CppText()
        yield inner
        self.line(f"{header} {{")
        self.append(inner, "  ")
        self.line(f"}}{after}")
