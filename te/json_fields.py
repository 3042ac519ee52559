"""Readers of the parts of a workload's JSON. Each raises InvalidWorkload whose ``field`` is a JSON pointer."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from ..core.errors import InvalidWorkload

T = TypeVar("T")


def object_of(
    data: object, field: str, at: str, required: tuple[str, ...], optional: tuple[str, ...] = ()
) -> dict[str, object]:
    """Return an object with these members. ``at`` is the pointer that its members' names are put behind."""
    if not isinstance(data, dict):
        raise InvalidWorkload(f"expected an object, given {given_words(data)}", field=field)
    for name in required:
        if name not in data:
            raise InvalidWorkload(f"{name} is missing", field=f"{at}/{name}")
    for name in data:
        if name not in required and name not in optional:
            allowed = ", ".join((*required, *optional))
            said = f"{given_words(name)} is unknown; allowed: {allowed}"
            raise InvalidWorkload(said, field=f"{at}/{pointer_step(name)}")
    return data


def list_of(data: object, field: str, limit: int, read: Callable[[object, str], T]) -> list[T]:
    """Return a list of at most ``limit`` items, each of which ``read`` reads."""
    if not isinstance(data, list):
        raise InvalidWorkload(f"expected a list, given {given_words(data)}", field=field)
    if len(data) > limit:
        raise InvalidWorkload(f"{len(data)} items; allowed: at most {limit}", field=field)
    return [read(item, f"{field}/{n}") for n, item in enumerate(data)]


def member_of(value: object, table: Mapping[str, T], field: str, noun: str) -> T:
    """Return the entry of ``table`` that a text names. ``noun`` says what the table has."""
    found = table.get(value) if isinstance(value, str) else None
    if found is None:
        raise InvalidWorkload(f"{given_words(value)} is no {noun}; allowed: {', '.join(table)}", field=field)
    return found


def string_of(value: object, field: str) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise InvalidWorkload(f"expected a name, given {given_words(value)}", field=field)
    return value


def integer_of(value: object, field: str) -> int:
    """Return a whole number, which true and false are not."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidWorkload(f"expected a whole number, given {given_words(value)}", field=field)
    return value


def given_words(value: object) -> str:
    """Return a name for what was given that is short enough for an error message, however large the value is."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value) if abs(value) < 10**20 else "a huge number"
        case float():
            return str(value)
        case str():
            return repr(value if len(value) <= 40 else value[:37] + "...")
        case list():
            return "a list"
        case dict():
            return "an object"
    return type(value).__name__


def pointer_step(name: object) -> str:
    """Return one step of a JSON pointer (RFC 6901)."""
    text = str(name)[:64].encode("ascii", "backslashreplace").decode()
    return text.replace("~", "~0").replace("/", "~1")
