"""The options of the back end, as ``torch.compile(..., options={...})`` gives them."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ..core.addresses import is_service_address
from ..core.errors import InvalidParameter
from ..schedule.sketches import SKETCHES
from .training import TRAINING

VERIFY = ("first", "always", "never")


@dataclass(frozen=True, slots=True)
class Options:
    """``verify``: whether the first call of each program, every call, or none is compared with eager in float64.
    ``wait``: compile in the first call instead of in the background. ``service``: the address of a service that is
    asked for schedules, all of a program at once. ``tune``: the trials of the one job that the service is given where
    it does not know all schedules of a program; 0: no job. ``name``: what the model is called there. ``programs``: how
    many programs of one graph are kept, one for each set of shapes. ``training``: whether forward and backward graphs
    run on kernels: ``auto`` where that is expected to win (float32 products on a processor), ``always``, or ``never``.
    ``refused_sketches``: sketches that no kernel may be of, such as ``cpu_winograd``.
    """

    verify: str = "first"
    wait: bool = False
    service: str = ""
    tune: int = 0
    name: str = ""
    programs: int = 16
    training: str = "auto"
    refused_sketches: tuple[str, ...] = ()

    @classmethod
    def of(cls, mode: str | None, options: Mapping[str, Any] | None) -> "Options":
        """Return the options of a call of ``torch.compile``. Raises InvalidParameter for an option that is unknown or
        has a value that is not allowed, and for any mode but the default."""
        if mode not in (None, "default"):
            raise InvalidParameter(f"mode is {mode!r}; allowed: default", field="mode")
        given = dict(options or {})
        names = [f.name for f in fields(cls)]
        for name in given:
            if name not in names:
                raise InvalidParameter(f"no option {name!r}; allowed: {', '.join(names)}", field=str(name))
        refused = given.get("refused_sketches", ())
        if isinstance(refused, list):
            given["refused_sketches"] = tuple(refused)
        found = cls(**given)
        for name, right, allowed in (
            ("verify", found.verify in VERIFY, ", ".join(VERIFY)),
            ("training", found.training in TRAINING, ", ".join(TRAINING)),
            ("wait", isinstance(found.wait, bool), "True, False"),
            ("service", found.service == "" or is_service_address(found.service), "an address: http://HOST:PORT"),
            ("tune", type(found.tune) is int and 0 <= found.tune <= 1_000_000, "whole numbers from 0 to 1000000"),
            ("name", isinstance(found.name, str) and len(found.name) <= 64, "a text of at most 64 characters"),
            ("programs", type(found.programs) is int and found.programs >= 1, "whole numbers from 1"),
            (
                "refused_sketches",
                isinstance(refused, (tuple, list)) and all(isinstance(n, str) and n in SKETCHES for n in refused),
                f"a list of names of sketches: {', '.join(SKETCHES)}",
            ),
        ):
            if not right:
                raise InvalidParameter(f"{name} is {given[name]!r}; allowed: {allowed}", field=name)
        if found.tune and not found.service:
            raise InvalidParameter("tune needs the address of a service", field="service")
        return found
