"""The default executor: spawned children on this machine."""

from ..core.target import Profile, Target
from .builder_supervisor import BuilderSupervisor
from .child_supervisor import WorkerSpec
from .executor import Executor
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
        ordinal: int = 0,
    ) -> None:
        spec = WorkerSpec(target, profile or Profile(), seed, settings or ExecutorSettings(), ordinal)
        builders = [BuilderSupervisor(spec) for _ in range(builder_count(spec.settings))]
        super().__init__(spec, builders, RunnerSupervisor(spec))
