"""Finds the key that a client shows to a service.

In this order: what is given (``--token``), the variable TILEWRIGHT_TOKEN, and the file of the setting ``token_file``
(``~/.config/tilewright/tokens``), whose lines are an address and a key. A key in the file goes to its address alone.
"""

import os
import stat
from pathlib import Path

from ..core.errors import InvalidParameter
from ..service.settings import Settings


def stored_token(address: str, settings: Settings | None = None) -> str | None:
    """Return the key for the service at an address; None where there is none. Raises InvalidParameter for a file that
    others may read, or that has another form."""
    settings = settings or Settings()
    return settings.shown_token or _in_file(address.rstrip("/"), Path(settings.token_file))


def store_token(address: str, token: str, settings: Settings) -> Path:
    """Put the key for an address into the file, which nobody else can read; return the file. Raises InvalidParameter
    where that is not possible."""
    path, address = Path(settings.token_file), address.rstrip("/")
    lines = [f"{known} {kept}" for known, kept in _lines(path) if known != address] + [f"{address} {token}"]
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        made = path.with_name(f"{path.name}.part")
        made.unlink(missing_ok=True)
        with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        made.replace(path)
    except OSError as error:
        raise InvalidParameter(f"cannot write {path}: {error.strerror}", field="token_file") from error
    return path


def _in_file(address: str, path: Path) -> str | None:
    return dict(_lines(path)).get(address)


def _lines(path: Path) -> list[tuple[str, str]]:
    try:
        with path.open(encoding="utf-8") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise InvalidParameter(f"others may read {path}, which has keys: chmod 600 {path}", field="token_file")
            lines = [line.split() for line in file if line.strip() and not line.startswith("#")]
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidParameter(f"cannot read {path}: {error}", field="token_file") from error
    if any(len(line) != 2 for line in lines):
        raise InvalidParameter(f"each line of {path} has an address and a key", field="token_file")
    return [(address.rstrip("/"), token) for address, token in lines]
