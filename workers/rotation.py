"""The argument sets a kernel is timed on: one for warm caches, as many as it takes for cold ones."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from ..codegen.backend import KernelParameter
from ..runtime.device import Device, LoadedKernel, Memory
from .environment import disturbance
from .timing import RemeasureRules, Sample, Timer, TimingRules

_MOST_SETS = 256

Rules = TypeVar("Rules", TimingRules, RemeasureRules)


class Rotation:
    """Sets of inputs and outputs, equal in content, that launches go through in turn.

    Where ``cold_bytes`` is 0 there is one set. Otherwise there are so many that a round through them covers that much
    memory. Small workloads would need too many: they get 256, no sample goes round more than once, and between samples
    the caches are filled with something else. Workspace is not rotated. A program that calls a kernel again and again
    hands it the same, with what it has made of constant inputs (``LoadedKernel.prepare``).
    """

    def __init__(
        self,
        device: Device,
        first: Mapping[str, Memory],
        parameters: Sequence[KernelParameter],
        inputs: Mapping[str, Memory],
        cold_bytes: int,
        *,
        is_host: bool,
    ) -> None:
        """``first``: the memory of the first set; ``inputs``: what inputs hold, and outputs that are not 0 at first.
        ``is_host``: whether launches run on the processor, where other work of the machine can keep them waiting."""
        self._device = device
        self._is_host = is_host
        each = sum(p.bytes for p in parameters)
        wanted = max(2, -(-cold_bytes // each)) if cold_bytes else 1
        self._sets: list[Mapping[str, Memory]] = [first]
        for _ in range(min(wanted, _MOST_SETS) - 1):
            memories = {p.name: device.allocate(p.bytes) for p in parameters}
            for p in parameters:
                if p.name in inputs:
                    device.copy(memories[p.name], inputs[p.name])
                else:
                    device.fill(memories[p.name], b"\0")
            self._sets.append(memories)
        self._sweep = device.allocate(cold_bytes) if wanted > _MOST_SETS else None

    def __len__(self) -> int:
        return len(self._sets)

    def rules(self, rules: Rules) -> Rules:
        """``rules`` for samples that are short enough to find cold caches to their end. Elsewhere than on the processor
        they are whole rounds through the sets, so that all samples are one prepared sequence of launches."""
        if not self._is_host:
            rules = replace(rules, launch_step=len(self._sets))
        return rules if self._sweep is None else replace(rules, most_launches=len(self._sets))

    def timer(self, kernel: LoadedKernel, names: Sequence[str], fixed: Mapping[str, Memory]) -> Timer:
        """Times launches of ``kernel``, which it prepares, of parameters ``names``: from ``fixed`` where it has them,
        else from the set whose turn it is. Each call goes on at the set where the last one ended."""
        sets = [[fixed[name] if name in fixed else s[name] for name in names] for s in self._sets]
        kernel.prepare(sets[0])  # constant inputs and workspace are alike in all sets
        following = 0

        def timer(launches: int) -> Sample:
            nonlocal following
            ordered = [*sets[following:], *sets[:following]][:launches]
            following = (following + launches) % len(sets)
            self._evict()
            if not self._is_host:
                return Sample(kernel.time(ordered, launches), launches)
            before = disturbance()
            seconds = kernel.time(ordered, launches)
            return Sample(seconds, launches, disturbance().since(before).waiting_seconds)

        return timer

    def _evict(self) -> None:
        """Read through a region that is larger than the caches. Reading leaves no dirty lines to write back later."""
        if self._sweep is not None:
            self._device.sweep(self._sweep)
