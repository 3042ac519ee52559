"""``python -m tilewright.cli``, and the program ``tilewright``, run a command."""

from ..core.collector import program_loading


def main() -> None:
    """Load the commands, and run the one of the command line."""
    with program_loading():
        from .main import main as run
    run()


if __name__ == "__main__":
    main()
