"""How much of a space is searched, and whether the analytic prior has a say in it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SpacePolicy:
    """A policy of search, apart from what is legal.

    ``prune``: search only the settings that the sketch's rules and its prior find promising. Off: search every legal
    setting. ``prior``: the analytic prior estimates a time for every setting, which pruning, ranking and features use.
    Off: nothing uses an estimate, so that nothing is pruned either.
    """

    prune: bool = True
    prior: bool = True

    @property
    def prunes(self) -> bool:
        """Whether settings are dropped that are legal."""
        return self.prune and self.prior


DEFAULT_POLICY = SpacePolicy()
