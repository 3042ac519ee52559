"""The part of the Python client for shape families."""

from collections.abc import Iterator

from .connection import ServiceConnection, parsed, path_part
from .family_requests import FamilyIn
from .family_responses import FamilyChoiceOut, FamilyOut, FamilyPage


class FamilyMethods(ServiceConnection):
    """Is the part of ``Client`` that makes shape families, shows them and chooses by them."""

    def make_family(self, family: FamilyIn) -> FamilyOut:
        """Make a shape family from the records that there are."""
        return parsed(FamilyOut, self._send("POST", "/v1/families", json=family.model_dump(exclude_none=True)))

    def families(self) -> Iterator[FamilyOut]:
        """Yield all shape families, newest first."""
        for page in self._pages("/v1/families", FamilyPage, {}):
            yield from page.families

    def family(self, name: str) -> FamilyOut:
        """Return a shape family."""
        return parsed(FamilyOut, self._send("GET", _path(name)))

    def choose_of_family(self, name: str, shape: str) -> FamilyChoiceOut:
        """Return the schedule of a family for a shape, which is written like ``m=64,n=128``."""
        return parsed(FamilyChoiceOut, self._send("GET", f"{_path(name)}/schedule", params={"shape": shape}))

    def dispatcher(self, name: str, language: str, function: str) -> str:
        """Return the dispatcher of a family as code: ``c`` or ``python``."""
        params = {"language": language, "function": function}
        return self._send("GET", f"{_path(name)}/dispatcher", params=params).text


def _path(name: str) -> str:
    return f"/v1/families/{path_part(name)}"
