"""Every form of one kernel as text, from the expression to the machine instructions, each line with the lines of the
form above that it comes from.

    expression ─ kernel ─ after each pass ─ source ─ PTX ─ SASS        (or LLVM IR, then assembly)

- Between two kernels, and between the last one and the source, ``ir.provenance`` says where a statement comes from.
- Below the source the compilers say it (``CodeLayer.origins``).
- Between the expression and the first kernel nothing can be carried along, because a sketch writes statements for all
  stages together. There the flow of data decides: a statement belongs to the tensors that what it writes ends up in.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..ir.provenance import Origins
from ..ir.rewrite import loads_of
from ..ir.stmt import Allocate, Kernel, Operation, Seq, Stmt, Store, expressions, substatements, walk_statements
from ..ir.text import kernel_lines
from ..te.text import workload_text
from ..te.workload import Workload
from .backend import CodeLayer, Origin, Source
from .line_origins import LineOrigins
from .lowering import LoweringStages


def code_layers(workload: Workload, stages: LoweringStages) -> tuple[CodeLayer, ...]:
    """Return all forms of the kernel that ``stages`` were made of. The ``origins`` of each count the lines of the one
    before it."""
    layers = [CodeLayer("expression", "text", workload_text(workload))]
    above = _IrLines(stages.kernel)
    layers.append(CodeLayer("kernel", "ir", above.text, _expression_origins(workload, stages.kernel)))
    for name, kernel in stages.passes:
        below = _IrLines(kernel)
        layers.append(CodeLayer(f"after {name}", "ir", below.text, above.origins_of(below.printed, stages.origins)))
        above = below
    layers.append(_source_layer(stages.source, above, stages.origins))
    return (*layers, *stages.artifacts.layers)


def _source_layer(source: Source, above: "_IrLines", origins: Origins) -> CodeLayer:
    found = above.origins_of(source.origins, origins)
    return CodeLayer("source", source.language, source.text, found)


class _IrLines:
    """The lines of a kernel, and where each of its statements is printed."""

    def __init__(self, kernel: Kernel) -> None:
        lines = kernel_lines(kernel)
        self.text = "\n".join(line for line, _ in lines) + "\n"
        self.printed: Sequence[tuple[Origin, ...]] = [(origin,) for _, origin in lines]
        self._ids = {id(s) for s in walk_statements(kernel.body)}
        self._numbers: dict[int, list[int]] = {}  # a statement that stands in two places has two lines
        for number, (_, origin) in enumerate(lines, start=1):
            self._numbers.setdefault(0 if isinstance(origin, Kernel) else id(origin), []).append(number)

    def origins_of(self, written_for: Iterable[Sequence[Origin]], origins: Origins) -> LineOrigins:
        """Return the lines of this kernel that lines come from which were ``written_for`` the given statements."""
        return tuple(tuple(sorted({n for o in given for n in self._lines(o, origins)})) for given in written_for)

    def _lines(self, origin: Origin, origins: Origins) -> Sequence[int]:
        if isinstance(origin, Kernel):
            return self._numbers[0][:1]
        return self._printed_at(origins.among(origin, self._ids))

    def _printed_at(self, stmt: Stmt | None) -> Sequence[int]:
        """Return the lines of ``stmt``. A sequence has none of its own, so it has those of what is in it."""
        if isinstance(stmt, Seq) and stmt.statements:
            return [n for below in stmt.statements for n in self._printed_at(below)]
        return () if stmt is None else self._numbers.get(id(stmt), ())


def _expression_origins(workload: Workload, kernel: Kernel) -> LineOrigins:
    """Return the lines of the expression that each line of the first kernel belongs to."""
    flow = _DataFlow(workload, kernel)
    parameters = [b.name for b in kernel.parameters]
    found = []
    for _, origin in kernel_lines(kernel):
        names = parameters if isinstance(origin, Kernel) else flow.tensors(origin)
        found.append(tuple(sorted({flow.lines[name] for name in names if name in flow.lines})))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Flow:
    """What one statement reads and writes, by name."""

    reads: frozenset[str]
    writes: frozenset[str]


class _DataFlow:
    """Tells which tensors of the expression a statement belongs to. ``lines`` has the line of each tensor."""

    def __init__(self, workload: Workload, kernel: Kernel) -> None:
        inputs, stages = [t.name for t in workload.inputs], [s.name for s in workload.stages]
        self.lines: Mapping[str, int] = {name: n for n, name in enumerate((*inputs, *stages), start=1)}
        self._inputs = frozenset(inputs)
        self._reads = {s.name: {load.buffer.name for load in loads_of(s.body)} for s in workload.stages}
        self._readers: dict[str, set[str]] = {}
        self._found: dict[int, tuple[Stmt, frozenset[str]]] = {}
        self._written = {b.name for b in kernel.parameters}
        for stmt in walk_statements(kernel.body):
            flow = self._flow(stmt)
            self._written |= flow.writes
            for name in flow.reads:
                self._readers.setdefault(name, set()).update(flow.writes - {name})

    def tensors(self, stmt: Stmt) -> frozenset[str]:
        """Return the inputs that ``stmt`` or what is below it reads, and the stages that it computes a part of."""
        known = self._found.get(id(stmt))
        if known is None:
            names: set[str] = set()
            for below in substatements(stmt):
                names |= self.tensors(below)
            flow = self._flow(stmt)
            names |= flow.reads & self._inputs
            for name in flow.writes | ({stmt.buffer.name} if isinstance(stmt, Allocate) else set()):
                names |= self._stages_fed_by(name)
            self._found[id(stmt)] = known = stmt, frozenset(names)
        return known[1]

    def _flow(self, stmt: Stmt) -> _Flow:
        loaded = {load.buffer.name for e in expressions(stmt) for load in loads_of(e)}
        if isinstance(stmt, Store):
            return _Flow(frozenset(loaded), frozenset({stmt.buffer.name}))
        named = {b.name for b in stmt.buffers} if isinstance(stmt, Operation) else set()
        return _Flow(frozenset(loaded | named), frozenset(named - self._inputs))

    def _stages_fed_by(self, buffer: str) -> frozenset[str]:
        """Return the nearest stages that data in ``buffer`` ends up in, with those that were computed along with
        them and have no buffer of their own."""
        found: set[str] = set()
        waiting, seen = [buffer], {buffer}
        while waiting:
            name = waiting.pop()
            if name in self._reads:
                found |= self._with_inlined(name)
                continue
            new = self._readers.get(name, set()) - seen
            seen |= new
            waiting.extend(new)
        return frozenset(found)

    def _with_inlined(self, stage: str) -> set[str]:
        names = {stage}
        for read in self._reads.get(stage, ()):
            if read in self._reads and read not in self._written:
                names |= self._with_inlined(read)
        return names


def linked_share(layer: CodeLayer) -> float:
    """Return the fraction of the lines of ``layer`` that come from lines of the form above, of those that are not
    blank. Of assembly, machine instructions count alone: directives, labels and constants come from no line."""
    counts = _COUNTED.get(layer.language, str.strip)
    lines = [n for n, line in enumerate(layer.text.splitlines()) if counts(line)]
    return sum(bool(layer.origins[n]) for n in lines) / len(lines) if lines and layer.origins else 0.0


_COUNTED: Mapping[str, Callable[[str], object]] = {
    "assembly": re.compile(r"\s+[^\s.#;]").match,
    "ptx": re.compile(r"\s+[^\s./].*;$").match,
    "sass": re.compile(r"\s+/\*[0-9a-f]{4,}\*/").match,
}
"""Language -> whether a line of it is an instruction."""
