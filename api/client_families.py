"""Describes the methods of a client for shape families."""

from .family_requests import FamilyIn
from .family_responses import FamilyChoiceOut, FamilyOut, FamilyPage
from .request_flow import Listing, RequestFlow, call, listed, parsed, path_part, request, slow_request


class FamilyMethods:
    """Describes the methods of a client that make shape families, show them and choose by them."""

    @call
    def make_family(self, family: FamilyIn) -> RequestFlow[FamilyOut]:
        """Make a shape family from the records that there are. Thousands of shapes in range take a minute or two."""
        asked = slow_request("POST", "/v1/families", json=family.model_dump(exclude_none=True))
        return parsed(FamilyOut, (yield asked))

    @listed
    def families(self) -> Listing[FamilyOut]:
        """Yield all shape families, newest first."""
        return Listing("/v1/families", FamilyPage, lambda page: page.families)

    @call
    def family(self, name: str) -> RequestFlow[FamilyOut]:
        """Return a shape family."""
        return parsed(FamilyOut, (yield request("GET", _path(name))))

    @call
    def choose_of_family(self, name: str, shape: str) -> RequestFlow[FamilyChoiceOut]:
        """Return the schedule of a family for a shape, which is written like ``m=64,n=128``."""
        return parsed(FamilyChoiceOut, (yield request("GET", f"{_path(name)}/schedule", params={"shape": shape})))

    @call
    def dispatcher(self, name: str, language: str, function: str) -> RequestFlow[str]:
        """Return the dispatcher of a family as code: ``c`` or ``python``."""
        params = {"language": language, "function": function}
        return (yield request("GET", f"{_path(name)}/dispatcher", params=params)).text


def _path(name: str) -> str:
    return f"/v1/families/{path_part(name)}"
