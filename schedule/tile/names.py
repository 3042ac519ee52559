"""Names for what a tile program declares, apart from those of its tensors."""

from collections.abc import Collection


def stem(base: str, tensors: Collection[str]) -> str:
    """``base``, with as many underlines as it takes that no tensor's name begins with it: it, and whatever is called
    after it, is free."""
    while any(name.startswith(base) for name in tensors):
        base += "_"
    return base
