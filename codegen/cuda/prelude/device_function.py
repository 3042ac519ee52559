"""What a function of the prelude is."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Function:
    """The text of one function (without its qualifiers), and the functions it calls. ``$`` in a text stands for the
    qualifiers of a device function; without one they come first."""

    text: str
    needs: tuple[str, ...] = ()
