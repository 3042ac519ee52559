"""``python -m tilewright.cli`` runs a command."""

from .main import main

if __name__ == "__main__":
    main()
