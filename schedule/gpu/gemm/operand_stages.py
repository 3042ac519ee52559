"""Operands of products on their way through shared memory: rings of boxes, each copied by one of the blocks that need
it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ....ir.buffer import Buffer
from ....ir.build import Writer
from ....ir.expr import Expr, Load, Var, index
from ....ir.gpu.tma import TmaLoad, TmaPrefetch
from ....ir.gpu.wgmma import SWIZZLE_128B_ELEMENTS
from ....ir.rewrite import substitute


@dataclass(frozen=True, slots=True)
class Box:
    """What one copy brings: ``extents`` elements of ``source`` from ``corner`` on, to ``place`` in a slab."""

    source: Buffer
    corner: tuple[Expr, ...]
    extents: tuple[int, ...]
    place: tuple[Expr, ...]

    def copied_to(self, ring: "Ring", slab: tuple[Expr, Expr], barriers: Buffer, stage: Expr) -> TmaLoad:
        """Its copy to a slab (stage, number), whose bytes ``barriers[stage]`` expects."""
        to = (*slab, *self.place)
        return TmaLoad(ring.buffer, to, self.source, self.corner, self.extents, barriers, stage, True, ring.mask)


@dataclass(frozen=True, slots=True)
class Ring:
    """One operand in shared memory, ``extent`` places of ``axis`` a stage: (stage, slab, place, k), or where rows do
    not lie ``along_k``, (stage, slab, 64 places, k, place). Where there are several ``loads``, one after the other.
    ``parts``: blocks of the cluster that each copy a part of it, for all of them: this one number ``part``, for the
    blocks of ``mask`` (one bit each)."""

    buffer: Buffer
    loads: tuple[Load, ...]
    axis: str
    extent: int
    along_k: bool
    parts: int
    part: Expr
    mask: Expr | None

    @property
    def bytes(self) -> int:
        """Of a stage."""
        return self.buffer.bytes // self.buffer.shape[0]

    def boxes(self, at: Mapping[str, Expr]) -> Iterator[Box]:
        """This block's part of a slab that begins at ``at``: of its places, or where those lie in rows, of ``k``."""
        part = (self.extent if self.along_k else SWIZZLE_128B_ELEMENTS) // self.parts
        first = self.part * part if self.parts > 1 else index(0)
        for number, load in enumerate(self.loads):
            if self.along_k:
                corner, extents = (
                    {**at, self.axis: at[self.axis] + first},
                    {self.axis: part, "k": SWIZZLE_128B_ELEMENTS},
                )
                yield _box(load, corner, extents, (first + number * self.extent, index(0)))
                continue
            runs = self.buffer.shape[2] // len(self.loads)
            for n in range(runs):
                corner = {**at, self.axis: at[self.axis] + n * SWIZZLE_128B_ELEMENTS, "k": at["k"] + first}
                extents = {self.axis: SWIZZLE_128B_ELEMENTS, "k": part}
                yield _box(load, corner, extents, (index(number * runs + n), first, index(0)))


def ask_for(w: Writer, ring: Ring, at: Mapping[str, Expr], step: Expr, steps: int, slabs: int) -> None:
    """Ask for this block's part of ``slabs`` slabs at ``step``, if it is one of the first ``steps``."""
    with w.when(step < steps):
        for slab in range(slabs):
            for box in ring.boxes({**at, "k": (step * slabs + slab) * SWIZZLE_128B_ELEMENTS}):
                w.emit(TmaPrefetch(box.source, box.corner, box.extents))


def _box(load: Load, at: Mapping[str, Expr], extents: Mapping[str, int], place: tuple[Expr, ...]) -> Box:
    """The elements that ``load`` reads from ``at`` on, ``extents`` along some axes."""
    sizes = tuple(next((n for axis, n in extents.items() if i == Var(axis)), 1) for i in load.indices)
    return Box(load.buffer, tuple(substitute(i, at) for i in load.indices), sizes, place)
