"""Has schedules compiled for people by the compilation pool, and turns its answers into views."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core.schedule import Schedule
from ..core.target import Target
from ..te.json import workload_to_json
from ..te.workload import Workload
from ..workers.compilation_pool import CompilationPool
from .views import FunctionView, MatrixLayer, Section


@dataclass(frozen=True, slots=True)
class CompiledLayers:
    """Holds every layer of the lowering pipeline for one schedule as text, its machine instructions by class, its
    device functions, and what its knobs mean."""

    sections: tuple[Section, ...]
    instructions: Mapping[str, int]
    functions: tuple[FunctionView, ...]
    accessed_bytes: int
    warnings: tuple[str, ...]
    matrix_layers: tuple[MatrixLayer, ...]
    meanings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Compilations:
    """Compiles schedules for people. It is thread-safe. Every method waits for a child, and raises what
    ``CompilationPool.ask`` raises."""

    pool: CompilationPool

    def first_schedule(self, workload: Workload, target: Target) -> Schedule:
        """Return a legal schedule when none is known yet. Raises UnsupportedTarget where no sketch fits."""
        answer, _ = self._ask("first", workload, target)
        return Schedule.from_json(answer["schedule"])

    def layers(self, workload: Workload, target: Target, schedule: Schedule) -> CompiledLayers:
        """Run the lowering pipeline, and return all of it. Raises IllegalSchedule, CompileError, UnsupportedTarget."""
        answer, _ = self._ask("layers", workload, target, schedule=schedule.to_json())
        return CompiledLayers(
            tuple(_section(**section) for section in answer["sections"]),
            answer["instructions"],
            tuple(FunctionView(**{**one, "blocks": tuple(one["blocks"])}) for one in answer["functions"]),
            answer["accessed_bytes"],
            tuple(answer["warnings"]),
            tuple(MatrixLayer(*found) for found in answer["matrix_layers"]),
            answer["meanings"],
        )

    def files(
        self, workload: Workload, target: Target, schedule: Schedule, name: str, library: bool
    ) -> Mapping[str, bytes]:
        """Return a schedule as files (see ``codegen.export``). Raises IllegalSchedule, CompileError, UnsupportedTarget,
        InvalidParameter."""
        asked = {"schedule": schedule.to_json(), "name": name, "library": library}
        answer, contents = self._ask("files", workload, target, **asked)
        return dict(zip(answer["files"], contents, strict=True))

    def _ask(self, what: str, workload: Workload, target: Target, **more: object) -> tuple[Any, tuple[bytes, ...]]:
        question = {"ask": what, "workload": workload_to_json(workload), "target": target.to_json(), **more}
        return self.pool.ask(question)


def _section(origins: list[list[int]] | tuple[()] = (), **section: Any) -> Section:
    return Section(**section, origins=tuple(map(tuple, origins)))
