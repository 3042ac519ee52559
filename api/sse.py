"""Reads server-sent events (WHATWG HTML, section 9.2) from the lines of a stream."""

from collections.abc import Iterable, Iterator


def read_events(lines: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Yield (event name, data, last event id) of each event. Comments, retry times and events without data are
    dropped."""
    name, data, identifier = "", list[str](), ""
    for line in lines:
        if not line:
            if data:
                yield name or "message", "\n".join(data), identifier
            name, data = "", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        elif field == "data":
            data.append(value)
        elif field == "id" and "\0" not in value:
            identifier = value
