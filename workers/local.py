"""The default executor: spawned children on this machine."""

from ..core.target import Profile, Target
from .executor import Executor
from .settings import ExecutorSettings
from .stations import BuildStation, Posting, RunStation


class LocalExecutor(Executor):
    """As many builder children as the target has threads, and one runner child. The children die with this process,
    and a child that hangs or crashes is replaced before the next candidate."""

    def __init__(
        self,
        target: Target,
        *,
        profile: Profile | None = None,
        seed: int = 0,
        settings: ExecutorSettings | None = None,
    ) -> None:
        posting = Posting(target, profile or Profile(), seed, settings or ExecutorSettings())
        super().__init__(posting, [BuildStation(posting) for _ in range(target.threads)], RunStation(posting))
