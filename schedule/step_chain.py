"""Chains of steps: workloads that are computed by several kernels, one behind the other (``cuda_chain``,
``cuda_decomposed`` and their like).

    out[i, l] = sum over j, k of A[i, j] * B[j, k] * C[k, l]
        ->  T[i, k] = sum over j of A[i, j] * B[j, k]          step 1, a workload of its own
            out[i, l] = sum over k of T[i, k] * C[k, l]        step 2

A *decomposition* is a sequence of steps. ``contraction_chain.py``, ``decomposition.py`` and ``parallel_split_k.py`` say
which ones a workload has. A step is a workload whose kernel another sketch writes. Nothing is known here about products
or rows. The kernel of a chain is the kernels of its steps, one behind the other, and what one step hands to a later one
lies in workspace.

    contraction_path    one of the decompositions; the knob has the name that fits them
    step_1.sketch       the sketch that writes the first step
    step_1.tile_m, …    its knobs

A knob of a step has the values that any of the sketches gives it there. Where the chosen sketch does not have the knob
it has its first value. The prior of a setting is the sum of the priors of its steps, so that it knows the operations
of each decomposition and the traffic of each intermediate tensor.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from ..core.errors import IllegalSchedule
from ..core.policy import DEFAULT_POLICY, SpacePolicy
from ..core.schedule import KnobValue, Schedule
from ..core.streams import stream
from ..core.target import Target
from ..ir.buffer import Buffer
from ..ir.rewrite import fresh_name, rename, rename_buffers
from ..ir.stmt import Allocate, For, Kernel, Launch, Seq, Stmt, seq, walk_statements
from ..te.cost import stage_flops
from ..te.workload import Workload
from .loop_nest.nest import KERNEL_NAME
from .sketch import NO_PEAKS, Peaks
from .space.columns import Bools, Ints, codes_of
from .space.knob import Knob, Quantity
from .space.space import Space
from .tile_sketch import FAR, TileSketch

MOST_STEPS = 6
"""Decompositions with more steps are left out: the space is the product of those of the steps."""
_NUMBER_BITS = 56
"""The rows of a product of spaces are numbers of so many bits at most."""
MOST_PROMISING = 4096
"""Pruning keeps about so many settings of each choice of decomposition and sketches: those whose steps are the fastest
by the prior of each."""
MOST_OF_A_STEP = 1_000_000
"""Pruning looks at so many settings of a step, whatever the limit of the whole space is."""

NO_STEP = "none"
"""The sketch of a step that a decomposition does not have."""

_INTERMEDIATE = Quantity("intermediate_bytes", "bytes", "all tensors that a step hands to a later one")
_OPERATIONS = Quantity("contraction_operations", "operations", "arithmetic operations of all steps")


def _prefix(step: int) -> str:
    """Return what the names of knobs of a step begin with; steps are counted from 0."""
    return f"step_{step + 1}."


@dataclass(frozen=True, slots=True)
class Decomposer:
    """Where decompositions come from.

    ``steps`` returns those of a workload by name, each as its steps; its second argument says of a workload whether a
    kernel class takes it. ``knob`` names the decomposition, and ``meaning`` says what that is. ``takes`` says in words
    which workloads have one. ``generic``: whether chains are used only where no class matches. ``beside_classes``:
    whether there are chains of workloads that a class takes as a whole.
    """

    steps: Callable[[Workload, Callable[[Workload], bool]], Sequence[tuple[KnobValue, tuple[Workload, ...]]]]
    knob: str
    meaning: str
    takes: str
    generic: bool = False
    beside_classes: bool = False


@dataclass(frozen=True, slots=True)
class _Decomposition:
    """One decomposition. ``sketches``: for each step, those that can write it. ``intermediates``: what a step hands to
    a later one and to nobody else."""

    name: KnobValue
    steps: tuple[Workload, ...]
    sketches: tuple[tuple[TileSketch, ...], ...]
    intermediates: tuple[Buffer, ...]


@dataclass(frozen=True, slots=True)
class _ChosenSteps:
    """A decomposition, which is the value of ``knob``, and a sketch for each of its steps. ``most``: how many steps any
    decomposition has."""

    knob: str
    chain: _Decomposition
    sketches: tuple[TileSketch, ...]
    most: int

    @property
    def steps(self) -> Iterator[tuple[str, Workload, TileSketch]]:
        """Each step: the prefix of its knobs, its workload, and its sketch."""
        for n, (step, sketch) in enumerate(zip(self.chain.steps, self.sketches, strict=True)):
            yield _prefix(n), step, sketch

    @property
    def own(self) -> dict[str, KnobValue]:
        """The knobs that make the choice."""
        named: dict[str, KnobValue] = {f"{_prefix(n)}sketch": NO_STEP for n in range(self.most)}
        chosen = {f"{prefix}sketch": sketch.name for prefix, _, sketch in self.steps}
        return {self.knob: self.chain.name, **named, **chosen}


@dataclass(frozen=True)
class _ChainPlan:
    """All choices for one workload on one target, and the knobs of all of them."""

    choices: tuple[_ChosenSteps, ...]
    knobs: tuple[Knob, ...]


class StepChain:
    """A sketch (see ``schedule.sketch.Sketch``) that computes a workload in the steps of a decomposition. ``kind`` is
    the kind of target. ``sketches`` write the steps: those of kernel classes, and the generic one where no class takes
    a step."""

    dynamic = False
    version = 1
    quantities = (_INTERMEDIATE, _OPERATIONS)

    def __init__(self, name: str, kind: str, sketches: Sequence[TileSketch], decomposer: Decomposer) -> None:
        self.name, self.generic = name, decomposer.generic
        self._kind = kind
        self._sketches = tuple(sketches)
        self._decomposer = decomposer
        self._plan = lru_cache(maxsize=16)(self._found)

    def matches(self, workload: Workload, target: Target) -> bool:
        return target.kind == self._kind and bool(self._plan(workload, target).choices)

    def knobs(self, workload: Workload, target: Target) -> tuple[Knob, ...]:
        return self._planned(workload, target).knobs

    def space(
        self,
        workload: Workload,
        target: Target,
        *,
        seed: int = 0,
        limit: int = 1_000_000,
        policy: SpacePolicy = DEFAULT_POLICY,
        peaks: Peaks = NO_PEAKS,
    ) -> Space:
        plan = self._planned(workload, target)
        most = MOST_OF_A_STEP if policy.prunes else limit  # the fastest settings are found among all

        @cache  # most choices have most of their steps in common
        def space_of(step: Workload, sketch: TileSketch, limit: int) -> Space:
            return sketch.space(step, target, seed=seed, limit=limit, policy=policy, peaks=peaks)

        parts = [(choice, _spaces(choice, most, space_of)) for choice in plan.choices]
        if policy.prunes:
            parts = _promising(parts)
        rows = [prod(len(s) for s in own) for _, own in parts]
        total, low, high = ([prod(getattr(s, n) for s in own) for _, own in parts] for n in ("total", "low", "high"))
        draws = stream(seed, self.name)
        counts = _shares(rows, total, limit, draws)
        drawn = [_drawn(most, count, draws) for most, count in zip(rows, counts, strict=True)]
        made = [_rows(plan, choice, own, which) for (choice, own), which in zip(parts, drawn, strict=True)]
        codes, prior = (np.concatenate([block[n] for block in made]) for n in range(2))
        each = [_derived(choice.chain) for choice, _ in parts]
        quantities = {
            q.name: np.repeat(np.array([d[q.name] for d in each], np.float32), counts) for q in self.quantities
        }
        return Space(
            *(self.name, self.version, plan.knobs, codes, quantities, sum(total), prior if policy.prior else None),
            low=sum(low),
            high=sum(high),
        )

    def legal(self, workload: Workload, target: Target, schedules: Sequence[Schedule]) -> Bools:
        self._planned(workload, target)
        return np.array([self._is_legal(workload, target, schedule) for schedule in schedules], np.bool_)

    def _is_legal(self, workload: Workload, target: Target, schedule: Schedule) -> bool:
        try:
            ((choice, own),) = self._decoded(workload, target, [schedule])
        except IllegalSchedule:
            return False
        return all(bool(x.legal(step, target, [s])[0]) for (_, step, x), s in zip(choice.steps, own, strict=True))

    def derive(
        self, workload: Workload, target: Target, schedules: Sequence[Schedule]
    ) -> Mapping[str, NDArray[np.float32]]:
        found = [_derived(choice.chain) for choice, _ in self._decoded(workload, target, schedules)]
        return {q.name: np.array([f[q.name] for f in found], np.float32) for q in self.quantities}

    def prior_seconds(
        self, workload: Workload, target: Target, schedules: Sequence[Schedule], peaks: Peaks = NO_PEAKS
    ) -> NDArray[np.float32]:
        seconds = np.zeros(len(schedules), np.float32)
        asked: dict[tuple[int, Workload, TileSketch], list[tuple[int, Schedule]]] = {}
        for row, (choice, own) in enumerate(self._decoded(workload, target, schedules)):
            for n, ((_, step, sketch), schedule) in enumerate(zip(choice.steps, own, strict=True)):
                asked.setdefault((n, step, sketch), []).append((row, schedule))
        for (_, step, sketch), wanted in sorted(asked.items(), key=lambda item: item[0][0]):
            rows = [row for row, _ in wanted]
            seconds[rows] += sketch.prior_seconds(step, target, [s for _, s in wanted], peaks)
        return seconds

    def lower(self, workload: Workload, target: Target, schedule: Schedule) -> Kernel:
        ((choice, own),) = self._decoded(workload, target, [schedule])
        kernels = [sketch.lower(step, target, s) for (_, step, sketch), s in zip(choice.steps, own, strict=True)]
        return _joined(workload, choice.chain.intermediates, kernels)

    def _planned(self, workload: Workload, target: Target) -> _ChainPlan:
        if workload.dynamic:
            raise IllegalSchedule(
                f"{self.name} writes kernels for static shapes alone; this workload has a dynamic dimension",
                field="/schedule/sketch",
            )
        if not self.matches(workload, target):
            raise IllegalSchedule(
                f"{self.name} does not match this workload on {target}: it takes {self._decomposer.takes}",
                field="/schedule/sketch",
            )
        return self._plan(workload, target)

    def _found(self, workload: Workload, target: Target) -> _ChainPlan:
        whole = not self._decomposer.beside_classes and _has_class(self._sketches, workload, target)
        chains = [] if whole else self._in_steps(workload, target)
        if all(len(chain.steps) == 1 for chain in chains):  # nothing but the workload as it is written
            return _ChainPlan((), ())
        most = max(len(chain.steps) for chain in chains)
        choices = tuple(
            _ChosenSteps(self._decomposer.knob, c, sketches, most) for c in chains for sketches in product(*c.sketches)
        )
        values: dict[str, dict[KnobValue, None]] = {}
        meanings = {self._decomposer.knob: self._decomposer.meaning}
        for choice in choices:
            for name, value in choice.own.items():
                values.setdefault(name, {})[value] = None
                meanings.setdefault(name, "the sketch that writes this step")
            for prefix, step, sketch in choice.steps:
                for knob in sketch.knobs(step, target):
                    values.setdefault(prefix + knob.name, {}).update(dict.fromkeys(knob.values))
                    meanings.setdefault(prefix + knob.name, knob.meaning)
        return _ChainPlan(choices, tuple(Knob(name, tuple(own), meanings[name]) for name, own in values.items()))

    def _in_steps(self, workload: Workload, target: Target) -> list[_Decomposition]:
        """Return the decompositions whose steps all have a sketch."""
        found = []
        for name, steps in self._decomposer.steps(workload, lambda step: _has_class(self._sketches, step, target)):
            sketches = tuple(_writing(self._sketches, step, target) for step in steps)
            if all(sketches) and len(steps) <= MOST_STEPS:
                handed = (b for step in steps[:-1] for b in step.output_buffers)
                inner = tuple(b for b in handed if b.name not in workload.outputs)
                found.append(_Decomposition(name, steps, sketches, inner))
        return found

    def _decoded(
        self, workload: Workload, target: Target, schedules: Sequence[Schedule]
    ) -> list[tuple[_ChosenSteps, list[Schedule]]]:
        """Return what each schedule chooses, and the schedules of its steps."""
        plan = self._planned(workload, target)
        for schedule in schedules:
            if (schedule.sketch, schedule.version) != (self.name, self.version):
                raise IllegalSchedule(
                    f"a schedule of {schedule.sketch}@{schedule.version}; allowed: {self.name}@{self.version}",
                    field="/schedule/sketch",
                )
        return [self._decode(plan, target, row) for row in codes_of(plan.knobs, schedules)]

    def _decode(
        self, plan: _ChainPlan, target: Target, codes: NDArray[np.int16]
    ) -> tuple[_ChosenSteps, list[Schedule]]:
        values = {knob.name: knob.values[int(c)] for knob, c in zip(plan.knobs, codes, strict=True)}
        choice = next((c for c in plan.choices if all(values[n] == v for n, v in c.own.items())), None)
        if choice is None:
            made = ", ".join(f"{k.name}={values[k.name]}" for k in plan.knobs if k.name in _deciding(plan))
            raise IllegalSchedule(
                f"{made} is no choice of this workload; allowed: "
                + "; ".join(", ".join(f"{n}={v}" for n, v in c.own.items()) for c in plan.choices),
                field="/schedule/knobs",
            )
        used, schedules = set(choice.own), list[Schedule]()
        for prefix, step, sketch in choice.steps:
            names = [knob.name for knob in sketch.knobs(step, target)]
            used |= {prefix + name for name in names}
            schedules.append(Schedule.of(sketch.name, sketch.version, {n: values[prefix + n] for n in names}))
        for knob, code in zip(plan.knobs, codes, strict=True):
            if code and knob.name not in used:
                raise IllegalSchedule(
                    f"knob {knob.name} is {values[knob.name]!r}, which changes nothing with "
                    f"{', '.join(f'{n}={v}' for n, v in choice.own.items())}; allowed here: {knob.values[0]}",
                    field=f"/schedule/knobs/{knob.name}",
                )
        return choice, schedules


# Decompositions have many steps in common, and so have the chains of one kind of target, which have the same sketches.


@lru_cache(maxsize=512)
def _has_class(sketches: tuple[TileSketch, ...], workload: Workload, target: Target) -> bool:
    """Return whether one of ``sketches`` is written for the class of a workload."""
    return any(not s.generic and s.matches(workload, target) for s in sketches)


@lru_cache(maxsize=512)
def _writing(sketches: tuple[TileSketch, ...], step: Workload, target: Target) -> tuple[TileSketch, ...]:
    """Return those of ``sketches`` that can write a step: those of its class, or the generic one."""
    fitting = [s for s in sketches if s.matches(step, target)]
    return tuple([s for s in fitting if not s.generic] or fitting)


def _deciding(plan: _ChainPlan) -> set[str]:
    return {name for choice in plan.choices for name in choice.own}


def _promising(parts: Sequence[tuple[_ChosenSteps, list[Space]]]) -> list[tuple[_ChosenSteps, list[Space]]]:
    """Return the choices that are not ``FAR`` slower than the best one by their priors, and of each step of them the
    settings with the least estimates."""
    least = [sum(float(_estimates(s).min()) for s in own) for _, own in parts]
    kept = []
    for (choice, own), seconds in zip(parts, least, strict=True):
        if seconds <= FAR * min(least):
            kept.append((choice, [_fastest(s, round(MOST_PROMISING ** (1 / len(own)))) for s in own]))
    return kept


def _fastest(space: Space, most: int) -> Space:
    """Return a space cut to the settings with the least estimates, in their order."""
    rows = np.sort(np.argsort(_estimates(space), kind="stable")[:most])
    count = len(rows)
    kept = _estimates(space)[rows]
    return replace(space, codes=space.codes[rows], prior_seconds=kept, total=count, low=count, high=count)


def _estimates(space: Space) -> NDArray[np.float32]:
    assert space.prior_seconds is not None, "pruning has priors"
    return space.prior_seconds


def _spaces(choice: _ChosenSteps, limit: int, space_of: Callable[[Workload, TileSketch, int], Space]) -> list[Space]:
    """Return the space of each step, cut so far that the rows of their product can be numbered."""
    most = min(limit, 1 << (_NUMBER_BITS // len(choice.sketches)))
    return [space_of(step, sketch, most) for _, step, sketch in choice.steps]


def _rows(
    plan: _ChainPlan, choice: _ChosenSteps, spaces: Sequence[Space], which: Ints
) -> tuple[NDArray[np.int16], NDArray[np.float32]]:
    """Return the codes and the estimates of some settings of a choice, by their numbers in the product of its
    spaces."""
    codes, prior = np.zeros((len(which), len(plan.knobs)), np.int16), np.zeros(len(which), np.float32)
    places = {knob.name: n for n, knob in enumerate(plan.knobs)}
    for name, value in choice.own.items():
        codes[:, places[name]] = plan.knobs[places[name]].values.index(value)
    picked = np.unravel_index(which, [len(s) for s in spaces])
    for (prefix, *_), space, at in zip(choice.steps, spaces, picked, strict=True):
        for k, knob in enumerate(space.knobs):
            place = places[prefix + knob.name]
            found = np.array([plan.knobs[place].values.index(v) for v in knob.values], np.int16)
            codes[:, place] = found[space.codes[at, k]]
        if space.prior_seconds is not None:
            prior += space.prior_seconds[at]
    return codes, prior


def _shares(rows: Sequence[int], totals: Sequence[int], limit: int, draws: np.random.Generator) -> list[int]:
    """Return how many settings of each choice a sample of all has, at most ``limit`` together and at most ``rows``
    each: all of them, or as many as a uniform draw from ``totals`` settings gives."""
    if sum(rows) <= limit:
        return list(rows)
    most, found = np.array(rows, np.int64), np.zeros(len(rows), np.int64)
    while (missing := limit - int(found.sum())) > 0:
        weights = np.where(found < most, np.array(totals, np.float64), 0.0)
        found = np.minimum(found + draws.multinomial(missing, weights / weights.sum()), most)
    return [int(n) for n in found]


def _drawn(count: int, limit: int, draws: np.random.Generator) -> Ints:
    """At most ``limit`` different numbers below ``count``, in order: all of them, or a uniform sample."""
    if count <= limit:
        return np.arange(count)
    if count <= 4 * limit:
        return np.sort(draws.permutation(count)[:limit])
    found = np.zeros(0, np.int64)
    while len(found) < limit:
        found = np.unique(np.concatenate([found, draws.integers(0, count, limit)]))
    return np.sort(draws.permutation(found)[:limit])


def _derived(chain: _Decomposition) -> dict[str, float]:
    return {
        _INTERMEDIATE.name: float(sum(b.bytes for b in chain.intermediates)),
        _OPERATIONS.name: float(sum(stage_flops(s) for step in chain.steps for s in step.stages)),
    }


def _joined(workload: Workload, intermediates: Sequence[Buffer], kernels: Sequence[Kernel]) -> Kernel:
    """Return the kernels of all steps as one: they run one after the other, and intermediates are workspace."""
    tensors = (*workload.inputs, *workload.output_buffers, *intermediates)
    taken = {b.name for b in tensors}
    workspace, bodies = list(intermediates), list[Stmt]()
    for number, kernel in enumerate(kernels):
        kernel = _renamed(kernel, taken, number)
        workspace += kernel.workspace
        bodies.append(kernel.body)
    handed = {b.name for b in intermediates}
    return Kernel(
        KERNEL_NAME,
        workload.inputs,
        workload.output_buffers,
        tuple(workspace),
        seq(*bodies),
        non_temporal=frozenset().union(*(k.non_temporal for k in kernels)) - handed,
        minimal_passes=all(k.minimal_passes for k in kernels),
    )


def _renamed(kernel: Kernel, taken: set[str], number: int) -> Kernel:
    """Return a kernel whose loops, launches and buffers, but for its tensors, have names that are not ``taken``. They
    are afterwards."""
    variables: dict[str, str] = {}
    buffers: dict[str, str] = {}

    def free(name: str) -> str:
        new = fresh_name(name, taken)
        taken.add(new)
        return new

    for buffer in kernel.workspace:
        buffers[buffer.name] = free(buffer.name)
    for s in walk_statements(kernel.body):
        match s:
            case For(var=var):
                variables[var] = free(var)
            case Launch(axes=axes):
                variables |= {a.var: free(a.var) for a in axes}
            case Allocate(buffer=buffer):
                buffers[buffer.name] = free(buffer.name)
    body = rename(rename_buffers(kernel.body, buffers), variables)
    if kernel.launches:
        body = seq(*(_numbered(launch, number, buffers) for launch in _top(body)))
    workspace = tuple(replace(b, name=buffers[b.name]) for b in kernel.workspace)
    return replace(kernel, workspace=workspace, body=body)


def _top(body: Stmt) -> tuple[Stmt, ...]:
    return body.statements if isinstance(body, Seq) else (body,)


def _numbered(launch: Stmt, number: int, buffers: Mapping[str, str]) -> Stmt:
    """Return a launch under the number of its step."""
    assert isinstance(launch, Launch)
    first = tuple(buffers.get(n, n) for n in launch.evict_first)
    return replace(launch, name=f"{launch.name}_{number + 1}", evict_first=first)
