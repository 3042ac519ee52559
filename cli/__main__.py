"""``python -m tilewright.cli``."""

from .main import main

if __name__ == "__main__":
    main()
