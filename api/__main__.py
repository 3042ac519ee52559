"""``python -m tilewright.api``: the service with its settings from the environment."""

import sys

from ..core.errors import TilewrightError
from ..service.settings import Settings
from .server import serve

if __name__ == "__main__":
    try:
        serve(Settings())
    except TilewrightError as error:
        sys.exit(f"error: {error.message}")
