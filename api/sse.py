"""Reads server-sent events (WHATWG HTML, section 9.2) from the lines of a stream."""

from collections.abc import Iterable, Iterator


class EventReader:
    """Reads events line by line. Comments, retry times and events without data are dropped."""

    def __init__(self) -> None:
        self._name, self._data, self._identifier = "", list[str](), ""

    def feed(self, line: str) -> tuple[str, str, str] | None:
        """Return (event name, data, last event id) of the event that a line ends; None where it ends none."""
        if not line:
            name, data = self._name, self._data
            self._name, self._data = "", []
            return (name or "message", "\n".join(data), self._identifier) if data else None
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            self._name = value
        elif field == "data":
            self._data.append(value)
        elif field == "id" and "\0" not in value:
            self._identifier = value
        return None


def read_events(lines: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the events of a stream, as ``EventReader`` returns them."""
    reader = EventReader()
    yield from (event for event in map(reader.feed, lines) if event is not None)
