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

    def __str__(self) -> str:
        """Say for people what is searched."""
        if self.prunes:
            return "promising settings"
        return "every legal setting, ranked by the prior" if self.prior else "every legal setting, without the prior"


DEFAULT_POLICY = SpacePolicy()
