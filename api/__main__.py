"""``python -m tilewright.api`` runs the service with its settings from the environment."""

import sys

from ..core.errors import TilewrightError
from ..service.settings import Settings
from .local_service import serve_when_free

if __name__ == "__main__":
    try:
        serve_when_free(Settings())
    except TilewrightError as error:
        sys.exit(f"error: {error.message}")
