"""The use cases of shape families: make one from the times that are known, show it, choose a schedule, write code."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from ..core.errors import InvalidParameter, NotFound
from ..core.schedule import Schedule
from ..db.rows import FamilyRow
from ..db.store import RecordStore
from ..search.families.emit import dispatcher_in_c, dispatcher_in_python
from ..search.families.family import Family, make_family, shape_in
from ..search.families.shapes import Shape
from . import wiring
from .callers import tenant_for
from .family_times import FamilyTimes
from .family_views import FamilyChoice, FamilySpec, FamilyView
from .lookup import Conditions
from .page_token import page_size as checked_size
from .page_token import read_token, write_token
from .views import Page

LISTING = ("families",)
LANGUAGES = ("c", "python")


class Families:
    """Every method raises StoreError when the database cannot serve. ``conditions`` are those of look-ups."""

    def __init__(self, store: RecordStore, conditions: Callable[..., Conditions]) -> None:
        self._store = store
        self._conditions = conditions

    def make(
        self, spec: FamilySpec, *, device_key: str | None = None, toolchain_key: str | None = None,
        profile: str | None = None, target: str | None = None,
    ) -> FamilyView:  # fmt: skip
        """Make a family from the records of its operator under the conditions, and keep it in place of one of this
        name. Raises InvalidParameter, and NotFound where no shape in range has a time."""
        dimensions = spec.dimensions
        wanted = self._conditions(
            device_key=device_key, toolchain_key=toolchain_key, profile=profile, target=target, relax=()
        )
        device = next((d for d in self._store.devices() if d.key == wanted.device_key), None)
        times = self._times(spec, wanted)
        if device is None or not times:
            raise NotFound(f"no record of {spec.operator} with these parameters is in range here", field="name")
        device = replace(device, measured=self._store.measured(device.key))
        known = FamilyTimes(spec, device)
        family = make_family(dimensions, known.table(times), known.learn, most=spec.most, target=spec.target_regret)
        document = {
            "operator": spec.operator,
            "parameters": dict(spec.parameters),
            "device_key": wanted.device_key,
            "toolchain_key": wanted.toolchain_key,
            "profile": wanted.profile,
            "target_regret": spec.target_regret,
            "family": family.to_json(),
        }
        return _view(self._store.keep_family(tenant_for(None), spec.name, document))

    def get(self, name: str) -> FamilyView:
        """Return a family. Raises NotFound."""
        return _view(self._store.family(name))

    def list(self, *, page_size: int = 50, token: str = "") -> Page[FamilyView]:
        """Return families, newest first. Raises InvalidParameter for a bad page size or token."""
        size, cursor = checked_size(page_size), read_token(token, LISTING, (int,))
        rows = self._store.families(before=None if cursor is None else int(cursor[0]), limit=size + 1)
        following = write_token(LISTING, [rows[size - 1].number]) if len(rows) > size else ""
        return Page(tuple(map(_view, rows[:size])), following)

    def choose(self, name: str, extents: Mapping[str, int]) -> FamilyChoice:
        """Return the schedule of a family for the shape whose extents are given by name. Raises NotFound, and
        InvalidParameter for a shape that is out of range."""
        view = self.get(name)
        dimensions = view.family.dimensions
        for extent in extents:
            if extent not in {dimension.name for dimension in dimensions}:
                known = ", ".join(dimension.name for dimension in dimensions)
                raise InvalidParameter(f"{extent[:80]!r} is no dimension; there are {known}", field="extent")
        shape = shape_in(extents, dimensions)
        place = view.family.choose(shape)
        return FamilyChoice({**view.parameters, **extents}, place, view.family.schedules[place])

    def code(self, name: str, language: str, function: str) -> str:
        """Return the dispatcher of a family in a language: ``c`` or ``python``. Raises NotFound, InvalidParameter."""
        if language not in LANGUAGES:
            raise InvalidParameter(f"{language[:80]!r}; allowed: {', '.join(LANGUAGES)}", field="language")
        family = self.get(name).family
        return (dispatcher_in_c if language == "c" else dispatcher_in_python)(family, function)

    def _times(self, spec: FamilySpec, wanted: Conditions) -> dict[Shape, dict[Schedule, float]]:
        """Return the best time of every schedule at every shape in range that was timed."""
        operator = wiring.operator_named(spec.operator)
        lowest = {dimension.name: dimension.low for dimension in spec.dimensions}
        fixed = {n: v for n, v in operator.values({**spec.parameters, **lowest}).values.items() if n not in lowest}
        times: dict[Shape, dict[Schedule, float]] = {}
        conditions = (wanted.device_key, wanted.toolchain_key, wanted.profile)
        for given, schedule, seconds in self._store.times_of(spec.operator, *conditions, wiring.sketch_versions()):
            parameters = operator.values(given).values
            if any(parameters[n] != value for n, value in fixed.items()):
                continue
            shape = shape_in(parameters, spec.dimensions)
            if all(extent in d.extents for extent, d in zip(shape, spec.dimensions, strict=True)):
                here = times.setdefault(shape, {})
                here[schedule] = min(seconds, here.get(schedule, seconds))
        return times


def _view(row: FamilyRow) -> FamilyView:
    about = dict(row.document)
    return FamilyView(name=row.name, created_at=row.created_at, family=Family.from_json(about.pop("family")), **about)
