"""The default executor: spawned children on this machine."""

from ..core.target import Profile, Target
from .builder import BuildStation
from .executor import Executor
from .runner import RunStation
from .settings import ExecutorSettings, builder_count
from .station import Posting


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
        posting = Posting(target, profile or Profile(), seed, settings or ExecutorSettings(), ordinal)
        builders = [BuildStation(posting) for _ in range(builder_count(posting.settings))]
        super().__init__(posting, builders, RunStation(posting))
