"""Constant inputs that a module keeps, so that its calls are not given them."""

from collections.abc import Collection

from ..core.errors import InvalidParameter
from ..te.workload import Workload


def check_constants(workload: Workload, bound: Collection[str], given: Collection[str]) -> None:
    """Raise InvalidParameter unless ``given`` are all inputs that the workload marks constant but those that are
    ``bound`` already."""
    wanted = workload.constants - set(bound)
    if set(given) != wanted:
        found, needed = (", ".join(sorted(names)) or "none" for names in (given, wanted))
        raise InvalidParameter(f"constants given: {found}; needed: {needed}", field="constants")
