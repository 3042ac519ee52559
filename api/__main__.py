"""``python -m tilewright.api`` runs the service with its settings from the environment."""

import sys

from ..core.collector import program_loading
from ..core.errors import TilewrightError

if __name__ == "__main__":
    with program_loading():
        from ..service.settings import Settings
        from .local_service import serve_when_free
    try:
        serve_when_free(Settings())
    except TilewrightError as error:
        sys.exit(f"error: {error.message}")
