"""Loads the cost model that is kept for a task, where it is known to help."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.errors import InvalidParameter
from ..core.target import DeviceInfo
from ..cost_model.model import FEATURE_VERSION, CostModel
from ..cost_model.similarity import family_name
from ..te.workload import Workload
from . import wiring

if TYPE_CHECKING:  # it loads SQLAlchemy, which the task worker of an embedded database does without
    from ..db.store import RecordStore


@dataclass(frozen=True, slots=True)
class KeptModel:
    """``model`` is None where none is to be used, and ``why`` says why. ``harmful``: there is one that does not rank
    tasks that it has not seen better than the prior alone, so that its records should teach nothing either."""

    model: CostModel | None
    why: str = ""
    harmful: bool = False


def kept_model(store: "RecordStore", workload: Workload, device: DeviceInfo, *, until: int) -> KeptModel:
    """Return the newest model of a workload's operator family and device class that was trained on records with ids up
    to ``until``, so that a task that is resumed gets the same one."""
    kind = wiring.kept_kind(family_name(workload, device.target), device.target)
    row = store.newest_model(kind, FEATURE_VERSION, until=until)
    if row is None:
        return KeptModel(None, f"no model of {kind} is kept")
    helps = row.metrics.get("helps")
    if helps is None:
        return KeptModel(None, f"model {row.id} was compared with the prior on no task that it has not seen")
    if not helps:
        return KeptModel(None, f"model {row.id} does not rank better than the prior: {_compared(row.metrics)}", True)
    try:
        return KeptModel(wiring.restored_model(row.kind, row.data))
    except (ValueError, InvalidParameter) as error:
        return KeptModel(None, f"model {row.id} cannot be loaded: {error}")


def _compared(metrics: Mapping[str, float]) -> str:
    names = ("rank_correlation", "top_5_score")
    return ", ".join(f"{n} {metrics.get(n, 0.0):.3f} against {metrics.get('prior_' + n, 0.0):.3f}" for n in names)
