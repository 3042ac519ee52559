"""Defines the models of what clients send. They are closed and bounded; lower layers check what the values mean
(shapes, names, ranges)."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator
from pydantic.config import JsonDict

from ..core.budget import Budget
from ..core.policy import SpacePolicy
from ..core.retuning import MOST_RUNNERS_UP, RUNNERS_UP
from . import limits

Name = Annotated[str, StringConstraints(pattern=limits.NAME_PATTERN)]
TargetName = Annotated[str, StringConstraints(pattern=limits.TARGET_PATTERN)]
FunctionName = Annotated[str, StringConstraints(pattern=limits.FUNCTION_PATTERN)]
Key = Annotated[str, StringConstraints(pattern=limits.KEY_PATTERN)]


Tag = Annotated[str, StringConstraints(pattern=limits.TAG_PATTERN)]
Notes = Annotated[str, StringConstraints(max_length=limits.MAX_NOTES, pattern=r"^[^\x00]*$")]


class RequestModel(BaseModel):
    """Refuses fields it does not know, NaN and infinities."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)


class BudgetIn(RequestModel):
    """The limit that is met first ends a task."""

    trials: int = Field(default=64, ge=1, le=1_000_000, description="How many candidates are measured.")
    seconds: float | None = Field(
        default=None, gt=0, le=30 * 86_400, description="How many wall-clock seconds a task may take; null: no limit."
    )
    stall: int | None = Field(
        None, ge=1, le=1_000_000, description="How many trials in a row may bring no new best; null: no limit."
    )

    def budget(self) -> Budget:
        return Budget(self.trials, self.seconds, self.stall)


class ExpressionIn(RequestModel):
    """A tensor expression is a ``workload``, or its ``text``, or an ``operator`` of the library with its
    ``parameters``."""

    workload: dict[str, Any] | None = Field(
        default=None,
        description="A workload in its JSON form (see the schema Workload), or a Triton kernel in its own "
        "(kind triton), where the service accepts code.",
    )
    text: Annotated[str, StringConstraints(max_length=limits.MAX_TEXT)] | None = Field(
        default=None, description="A workload in its text form: what `expression` of an answer shows."
    )
    operator: Name | None = Field(default=None, description="The name of a library operator (GET /v1/operators).")
    parameters: dict[str, Any] | None = Field(
        default=None, description="The operator's parameters; absent: its defaults."
    )

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if (self.workload, self.text, self.operator).count(None) != 2:
            raise ValueError("give one of workload, text, and operator with parameters")
        if self.operator is None and self.parameters is not None:
            raise ValueError("parameters belong to an operator; a workload has none")
        return self


class JobIn(RequestModel):
    """A job has one or more expressions to tune, each within the budget."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "tasks": [{"operator": "matmul", "parameters": {"m": 512, "n": 512, "k": 512}}],
                    "budget": {"trials": 64, "seconds": 60},
                }
            ]
        }
    )

    tasks: list[ExpressionIn] = Field(min_length=1, max_length=limits.MAX_TASKS)
    budget: BudgetIn = Field(default_factory=BudgetIn)  # type: ignore[arg-type]
    strategy: Name = Field(
        default="model",
        description="Search strategy: model, warm, portfolio, evolution, annealing, exhaustive, random.",
    )
    seed: int = Field(default=0, ge=0, le=limits.MAX_ID, description="Same seed and records: same search.")
    target: TargetName = Field(
        default="llvm",
        description="A class of devices: llvm, cuda, cuda:ARCH or the key of a known device. On a service of one "
        "machine also cuda:1, its second GPU.",
    )
    executor: Name = Field(default="local", description="Who compiles and measures: local or ray.")
    cache: Literal["warm", "cold"] | None = Field(
        default=None,
        description="Whether the caches hold the data when timing starts; null: warm on llvm, cold on cuda.",
    )
    prune: bool = Field(
        default=True,
        description="Search only the settings that the sketch's rules and its prior find promising; "
        "false: search every legal setting.",
    )
    prior: bool = Field(
        default=True,
        description="Use the analytic estimate of each setting's time for pruning, ranking and features; "
        "false: use no estimate at all, so that nothing is pruned either.",
    )
    tenant: Name | None = Field(
        default=None, description="Whose the job is, and who its device time is charged to; null: the key's own."
    )
    tags: list[Tag] = Field(default_factory=list, max_length=limits.MAX_TAGS, description="For people, all different.")
    notes: Notes = Field(default="", description="For people.")
    priority: int = Field(
        default=0, ge=-100, le=100, description="Of a tenant's jobs, those with a higher one go first."
    )
    deadline_seconds: float | None = Field(
        default=None, gt=0, le=365 * 86_400, description="The job fails if it is not done so long after its submission."
    )
    fresh: bool = Field(
        default=False,
        description="Measure everything anew; false: share the search of an equal task that is under way, and adopt "
        "records that fit exactly.",
    )
    units: int = Field(
        default=1,
        ge=1,
        le=8,
        description="So many devices of one class each task may have at once, as far as nobody else waits for them and "
        "its budget has 24 trials for each.",
    )
    validate_only: bool = Field(
        default=False, description="Check everything and create nothing; the answer is 200 without a job."
    )

    def policy(self) -> SpacePolicy:
        return SpacePolicy(self.prune, self.prior)


class RetuneIn(RequestModel):
    """Says what is retuned: workloads whose best records are of an earlier toolchain or sketch."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"target": "llvm", "runners_up": 8}]})

    workload_keys: list[Key] = Field(
        default_factory=list,
        max_length=limits.MAX_TASKS,
        description="Which workloads; none: those whose best records on the devices are all of another toolchain or of "
        "sketches in other versions.",
    )
    toolchain_before: Key | None = Field(
        default=None, description="Whose records are measured again; null: the newest earlier ones of each workload."
    )
    runners_up: int = Field(
        default=RUNNERS_UP,
        ge=1,
        le=MOST_RUNNERS_UP,
        description="How many schedules are measured again beside the winner of each workload.",
    )
    budget: BudgetIn = Field(
        default_factory=BudgetIn,  # type: ignore[arg-type]
        description="Of each workload; its search begins only where the winner does not hold.",
    )
    strategy: Name = Field(default="model", description="Search strategy, as of a job.")
    seed: int = Field(default=0, ge=0, le=limits.MAX_ID)
    target: TargetName = Field(default="llvm", description="A class of devices, as of a job.")
    executor: Name = Field(default="local", description="Who compiles and measures: local or ray.")
    cache: Literal["warm", "cold"] | None = Field(default=None, description="As of a job.")
    tenant: Name | None = Field(default=None, description="Whose the job is; null: the caller's own.")
    priority: int = Field(default=0, ge=-100, le=100)


class ReasonIn(RequestModel):
    """Says why a unit's state is changed."""

    reason: Annotated[str, StringConstraints(min_length=1, max_length=400, pattern=r"^[^\x00]*[^\x00\s][^\x00]*$")]


class PriorityIn(RequestModel):
    """Gives a job another priority."""

    priority: int = Field(ge=-100, le=100, description="Of a tenant's jobs, those with a higher one go first.")


class TenantIn(RequestModel):
    """Says what a tenant may have."""

    weight: float = Field(default=1.0, gt=0, le=1e6, description="Its share of the units, against that of the others.")
    most_units: int | None = Field(
        default=None, ge=0, le=(1 << 31) - 1, description="How many units its tasks may hold at once; null: no quota."
    )
    most_queued: int | None = Field(
        default=None, ge=0, le=(1 << 31) - 1, description="How many of its tasks may wait at once; null: no quota."
    )


class ScheduleIn(RequestModel):
    """A schedule is one setting of a sketch's knobs. Names that an earlier version gave are accepted."""

    sketch: Name
    version: int = Field(ge=0, le=1_000_000)
    knobs: dict[Name, int | Annotated[str, StringConstraints(max_length=64)]] = Field(max_length=256)


_EXPRESSION: JsonDict = {"operator": "matmul", "parameters": {"m": 512, "n": 512, "k": 512}}


Relaxable = Literal["profile", "toolchain", "device", "shape"]
"""These may give way in a look-up (``service.lookup.RELAXABLE``)."""
RelaxableOfMany = Literal["profile", "toolchain", "device"]
"""These may give way in a look-up of many workloads: near shapes take several statements for each."""


class ConditionsIn(RequestModel):
    """Says under which conditions the best schedule is looked up. Parts that are left out are those of the service's
    own machine."""

    device_key: Key | None = None
    toolchain_key: Key | None = None
    profile: Name | None = Field(default=None, description="Measuring profile, like warm-v1.")
    target: TargetName | None = Field(
        default=None,
        description="Which device of the host supplies the parts that are left out; or the architecture of the device "
        "whose key is given, such as llvm:x86-64.",
    )
    relax: list[Relaxable] = Field(
        default_factory=list,
        max_length=4,
        description="Which parts may give way where no record matches all; none: the match is exact. With shape, the "
        "schedule of the nearest workload of the operator is served that is legal for this one.",
    )

    def parts(self) -> dict[str, Any]:
        """Return what ``Service.conditions`` takes."""
        return {name: getattr(self, name) for name in ConditionsIn.model_fields}


class LookupIn(ExpressionIn, ConditionsIn):
    """Says which best schedule is looked up."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXPRESSION]})


class BatchLookupIn(ConditionsIn):
    """Says of which workloads the best schedules are looked up."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"workload_keys": ["0" * 64]}]})

    workload_keys: list[Key] = Field(min_length=1, max_length=limits.MAX_LOOKUP_KEYS)
    relax: list[RelaxableOfMany] = Field(  # type: ignore[assignment]
        default_factory=list,
        max_length=3,
        description="Which parts may give way where no record matches all; none: the match is exact.",
    )


def _names(given: object) -> object:
    return [name for name in given.split(",") if name] if isinstance(given, str) else given


class BestQuery(ConditionsIn):
    """This is the query of GET /v1/schedules/best."""

    workload_key: Key
    relax: Annotated[list[Relaxable], BeforeValidator(_names)] = Field(
        default_factory=list,
        max_length=4,
        description="Which parts may give way where no record matches all, with commas between them.",
    )


class ReleaseIn(RequestModel):
    """Names a release to make, and whose best schedules it has; without conditions it has those of all."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "2026-11"}]})

    name: Name
    device_key: Key | None = None
    toolchain_key: Key | None = None
    profile: Name | None = Field(default=None, description="Measuring profile, like warm-v1.")


class PromotionIn(RequestModel):
    """Names the release that a channel is to point to."""

    release: Name


class ExplainIn(ExpressionIn):
    """Says what is explained. Without a schedule it is the best known one, or else the first of the sketch."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXPRESSION]})

    schedule: ScheduleIn | None = None
    target: TargetName | None = Field(
        default=None,
        description="What code is made for: a device of the host (cuda), or by name (cuda:sm_90a, llvm:aarch64+sve).",
    )


class ExportIn(ExplainIn):
    """Says what is exported. Without a schedule it is the one that would be explained."""

    name: FunctionName = Field(default="kernel", description="What its functions for other programs are called.")
    library: bool = Field(default=False, description="Whether a shared library is linked as well.")


class ParametersIn(RequestModel):
    """Holds the parameters of an operator."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"parameters": {"m": 512, "n": 512, "k": 512}}]})

    parameters: dict[str, Any] = Field(default_factory=dict)


class NotesIn(RequestModel):
    """Replaces what people wrote to a job."""

    tags: list[Tag] = Field(default_factory=list, max_length=limits.MAX_TAGS, description="All different.")
    notes: Notes = ""


class KeyIn(RequestModel):
    """Says what a key is for."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "nightly", "scopes": ["read", "submit"]}]})

    name: Annotated[str, StringConstraints(min_length=1, max_length=128)] = Field(
        description="Whose it is, for people."
    )
    scopes: list[Literal["read", "submit", "worker", "admin"]] = Field(
        min_length=1,
        max_length=limits.MAX_SCOPES,
        description="read: see what its tenant has. submit: change it. worker: bring records. admin: everything, "
        "of all tenants.",
    )
    tenant: Name | None = Field(default=None, description="Whose rows it sees and makes; null: the caller's own.")
    requests_per_second: float | None = Field(
        default=None, gt=0, le=1e6, description="How many requests it may send, on average; null: as the service says."
    )
    days: float | None = Field(default=None, gt=0, le=3660, description="How long it is good; null: until revoked.")
