"""What an address of a service looks like."""

from urllib.parse import urlsplit


def is_service_address(value: object) -> bool:
    """Return whether a value is such as ``http://HOST:PORT``, whether or not a service is there."""
    if not isinstance(value, str):
        return False
    try:
        parts = urlsplit(value)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, or brackets that do not close
        return False
