"""A program: a graph after all passes, cut into calls in order, with the places of what they compute."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ..core.keys import JSON, content_key
from ..te.key import workload_key
from ..te.workload import Workload
from .graph import Graph, Node, check_graph
from .json import erased_json
from .memory import Arena, Lifetime, plan_arena
from .partition import Call, Fits, ForeignCall, JoinCall, KernelCall, ViewCall, partition
from .passes import simplify_graph
from .passes.cleanup import drop_identities, drop_unused
from .passes.products import join_products
from .passes.reshapes import raise_splits
from .siblings import join_siblings
from .steps import is_in_place, steps_in_place

_SMALL_UPDATE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Task:
    """A workload of a program, and how many of its calls compute it."""

    workload: Workload
    count: int


@dataclass(frozen=True, slots=True)
class ValuePlace:
    """The value ``root``, which has memory of its own, from its element number ``offset`` on."""

    root: str
    offset: int = 0


@dataclass(frozen=True)
class Program:
    """``calls`` run every time. ``recipe`` computes, from constants alone, what is kept for each set of weights: folded
    batch norms, stored permutations. ``prepared`` are views of constants and of what the recipe gives. ``arena`` has
    the values that only kernels of ``calls`` read, and ``kept_arena`` the outputs of ``recipe``."""

    graph: Graph
    recipe: Graph
    prepared: tuple[ViewCall, ...]
    calls: tuple[Call, ...]
    arena: Arena
    kept_arena: Arena

    @cached_property
    def key(self) -> str:
        """64 hexadecimal digits: two programs have one key exactly when they differ in names alone."""
        order = {node.name: n for n, node in enumerate(self.graph.nodes)}
        cuts: list[JSON] = [[order[n] for n in c.nodes] for c in self.kernels]
        return content_key({"graph": erased_json(self.graph), "kernels": cuts})

    @property
    def kernels(self) -> tuple[KernelCall, ...]:
        """All calls of kernels, in order."""
        return tuple(c for c in self.calls if isinstance(c, KernelCall))

    @cached_property
    def kernel_keys(self) -> tuple[str, ...]:
        """The key of the workload of each kernel, in order."""
        return tuple(workload_key(call.workload) for call in self.kernels)

    @cached_property
    def tasks(self) -> Mapping[str, Task]:
        """The distinct workloads of the kernels by key: what is worth tuning."""
        found: dict[str, Task] = {}
        for key, call in zip(self.kernel_keys, self.kernels, strict=True):
            found[key] = Task(call.workload, found[key].count + 1 if key in found else 1)
        return found

    @cached_property
    def places(self) -> Mapping[str, ValuePlace]:
        """For each value that is a view of another, or a part of one: where it lies."""
        return places_of((*self.prepared, *self.calls))


def places_of(calls: Sequence[Call]) -> dict[str, ValuePlace]:
    """Return where each value lies that has no memory of its own."""
    within: dict[str, ValuePlace] = {}
    for call in calls:
        if isinstance(call, JoinCall):
            within |= {name: ValuePlace(call.value, at) for name, at in zip(call.parts, call.offsets, strict=True)}
        elif isinstance(call, ViewCall):
            within[call.value] = ValuePlace(call.of, call.offset)
    found: dict[str, ValuePlace] = {}
    for name in within:
        chain = [name]
        while (before := within[chain[-1]].root) in within and before not in found:
            chain.append(before)
        for value in reversed(chain):
            place = within[value]
            outer = found.get(place.root, ValuePlace(place.root))
            found[value] = ValuePlace(outer.root, outer.offset + place.offset)
    return found


def compile_program(graph: Graph, fits: Fits, *, gpu: bool = False) -> Program:
    """Simplify ``graph``, cut it into calls, and place what they compute. ``fits`` says which workloads a kernel class
    takes. ``gpu``: whether the passes run that give graphs the forms of kernel classes for GPUs.
    Raises InvalidGraph, and InvalidWorkload for a node that is beyond the limits of a kernel."""
    graph = simplify_graph(check_graph(graph), gpu=gpu)
    calls = _cut(graph, fits)
    if gpu:
        graph, calls = _with_joined_products(graph, calls, fits)
        calls = join_siblings(graph, calls, fits)
    known = {v.name for v in graph.constants}
    kept: list[str] = []
    views: list[ViewCall] = []
    rest: list[Call] = []
    for call in calls:
        fixed = not isinstance(call, ForeignCall) and all(name in known for name in call.reads)
        if not fixed:
            rest.append(call)
            continue
        known.update(call.writes)
        if isinstance(call, ViewCall):
            views.append(call)
        else:
            kept.extend(call.writes)
    recipe = drop_unused(replace(graph, inputs=(), nodes=_fixed_nodes(graph), outputs=tuple(kept), updates=()))
    kept_arena = plan_arena([Lifetime(name, graph.values[name].bytes, 0, 0) for name in kept])
    return Program(graph, recipe, tuple(views), tuple(rest), _arena(graph, rest), kept_arena)


def _cut(graph: Graph, fits: Fits) -> tuple[Call, ...]:
    """Return the calls of a graph, whose loops over time need no copies where that is possible."""
    in_place = steps_in_place(graph)
    calls = partition(graph, fits, in_place)
    return calls if is_in_place(calls) else partition(graph, fits)


def _with_joined_products(graph: Graph, calls: tuple[Call, ...], fits: Fits) -> tuple[Graph, tuple[Call, ...]]:
    """Return the graph with products joined, and its calls, where that saves kernels and costs no kernel class; else
    both as given."""
    products = join_products(graph)
    if products.nodes == graph.nodes:
        return graph, calls
    joined = drop_unused(drop_identities(raise_splits(products)))
    other = _cut(joined, fits)

    def kernels(graph: Graph, calls: tuple[Call, ...]) -> list[KernelCall]:
        return [c for c in calls if isinstance(c, KernelCall) and not all(name in graph.fixed for name in c.writes)]

    before, after = kernels(graph, calls), kernels(joined, other)
    if len(after) >= len(before):
        return graph, calls
    generic = [sum(not fits(c.workload) for c in found) for found in (before, after)]
    return (joined, other) if generic[1] <= generic[0] else (graph, calls)


def _fixed_nodes(graph: Graph) -> tuple[Node, ...]:
    return tuple(n for n in graph.nodes if n.name in graph.fixed)


def fresh_values(graph: Graph, calls: tuple[Call, ...] | list[Call]) -> frozenset[str]:
    """Return the values that get memory of their own in every call, because something outside of the kernels sees them.
    Small values that overwrite inputs lie in the arena until the end of the call: training norms have hundreds of
    them."""
    seen = set(graph.outputs) | {name for _, name in graph.updates if graph.values[name].bytes > _SMALL_UPDATE_BYTES}
    for call in calls:
        if isinstance(call, ForeignCall):
            seen.update(call.reads)
    places = places_of(calls)
    return frozenset(places[name].root if name in places else name for name in seen)


def _arena(graph: Graph, calls: list[Call]) -> Arena:
    fresh = fresh_values(graph, calls)
    places = places_of(calls)
    first: dict[str, int] = {}
    last: dict[str, int] = {}

    def root(name: str) -> str:
        return places[name].root if name in places else name

    for n, call in enumerate(calls):
        for name in call.reads:
            last[root(name)] = n
        if isinstance(call, KernelCall):
            for name in call.writes:
                first.setdefault(root(name), n)
                last[root(name)] = n
    last |= {root(name): len(calls) for _, name in graph.updates}
    values = (name for name in first if name not in fresh)
    return plan_arena([Lifetime(v, graph.values[v].bytes, first[v], last[v]) for v in values])
