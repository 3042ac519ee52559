"""The default executor: spawned children on this machine."""

from ..core.fleet import Unit
from ..core.target import Profile, Target
from .builder_supervisor import BuilderSupervisor
from .child_supervisor import WorkerSpec
from .executor import Executor
from .probe import local_unit
from .runner_supervisor import RunnerSupervisor
from .settings import ExecutorSettings, builder_count


class LocalExecutor(Executor):
    """Builder children, one runner child for the device, and one that computes the data ahead of it. The children
    die with this process, and a child that hangs or crashes is replaced before the next candidate."""

    def __init__(
        self,
        target: Target,
        *,
        profile: Profile | None = None,
        seed: int = 0,
        settings: ExecutorSettings | None = None,
        unit: Unit | None = None,
        fence: int = 0,
    ) -> None:
        unit = unit or local_unit(target.kind)
        spec = WorkerSpec(target, profile or Profile(), seed, settings or ExecutorSettings(), unit, fence)
        builders = [BuilderSupervisor(spec) for _ in range(builder_count(spec.settings))]
        super().__init__(spec, builders, RunnerSupervisor(spec))
