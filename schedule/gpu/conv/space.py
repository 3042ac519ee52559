"""Convolutions on Hopper, by im2col TMA and wgmma: those of the settings of a product, and the order of k.

Images and filters are 16-bit floats with the channels of an image side by side (NHWC and its kin), in one to three
dimensions, with padding, strides and dilations. Groups are a batch of products. Epilogues are those of ``cuda_gemm``.
What that sketch takes, a window of one place that moves pixel by pixel, is left to it. Images of few channels are
folded by a first launch (``fold``). Others that TMA cannot load, since pixels do not begin at multiples of 16 bytes,
are repacked by one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.buffer import Buffer
from ....ir.gpu.wgmma import SWIZZLE_128B_ELEMENTS, WGMMA_M
from ....ir.stmt import Kernel
from ....te.workload import Workload
from ...loop_nest.nest import KERNEL_NAME
from ...problems.gemm import Gemm, skinny_gemm_of
from ...problems.implicit_gemm import implicit_gemm_of
from ...sketch import Peaks
from ...space.columns import Bools, Columns, Ints
from ...space.constraint import Constraint
from ...space.knob import Knob
from ...space.pruning import best_by_prior
from ...tile.names import FreshNameWriter
from ...tile_sketch import Plan, TileSketch
from ..gemm.epilogue import can_store_by_tma
from ..gemm.kernel import lower_gemm
from ..gemm.mainloop import can_use_wgmma
from ..gemm.prior import prior_seconds
from ..gemm.space import ARCHITECTURE, CUDA_GEMM, PRUNING, QUANTITIES, GemmPlan
from ..peaks import gpu_peaks
from .fold import folding_of
from .join import join_groups, joinable_groups

VERSION = 1
"""The version of the sketch. It grows whenever knobs, legality or lowering change what a schedule means."""

K_ORDER = Knob("taps_innermost", (0, 1), "whether k goes through all taps of 64 channels before the next 64 channels")
PIXELS, IM2COL = "pixels", "im2col"
"""The knob that says how pixels are loaded, and its value where they are loaded by im2col. Other values are patches."""
JOINED = "joined_groups"
"""The knob that says how many groups are joined."""
OVERLAPPED = "overlapped"
"""The knob that says how images of few channels are folded."""
MOST_PATCHES = 2
"""So many kinds of patches are tried: those of the fewest images, and of these the most even ones."""


@dataclass(frozen=True)
class ConvPlan(GemmPlan):
    """One convolution on one target. ``patched``: the same product for each kind of patch, by its name. ``given``: the
    product of the workload, where ``gemm`` is a product on folded images."""

    patched: Mapping[str, Gemm]
    given: Gemm | None = None

    @property
    def knobs(self) -> tuple[Knob, ...]:
        meaning = "how pixels are loaded: by im2col, or in boxes of images x pixels along each dimension"
        return (*super().knobs, *self._folded, K_ORDER, Knob(PIXELS, (IM2COL, *self.patched), meaning))

    @property
    def _folded(self) -> tuple[Knob, ...]:
        """How images are folded, where they are."""
        if self.given is None or self.given.window is None:
            return ()
        why = f"images are folded first, since pixels have {self.given.window.channels} channels"
        return (Knob(OVERLAPPED, (1, 0), f"whether what windows see overlaps, or is written for each of them: {why}"),)

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        window = self.gemm.window
        assert window is not None
        ordered = window.tap_count > 1 and window.channels > SWIZZLE_128B_ELEMENTS
        rule = Constraint(
            "taps_innermost is 0 where it changes no order: with one tap, or 64 channels at most",
            (K_ORDER.name,),
            lambda c: (c.ints(K_ORDER.name) == 0) | ordered,
        )
        whole = Constraint(
            f"pixels are loaded by {IM2COL} where a CTA loads no whole patches of {WGMMA_M} rows of A",
            ("consumer_warpgroups", "ping_pong", "atoms_m", "cluster_n", PIXELS),
            lambda c: c.flags(PIXELS, IM2COL) | (_rows_of_a_load(c) % WGMMA_M == 0),
        )
        return (*super().constraints, rule, whole)

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> NDArray[np.float64]:
        """As for products. Patches take as long as a matrix to load, pixels by im2col may take longer. Folded images
        are written and read once."""
        seconds, known = super().prior_seconds(columns, peaks), gpu_peaks(self.target, peaks)
        patched = next(iter(self.patched.values()), None)
        if patched is not None:
            in_patches = prior_seconds(patched, self.sizes(columns), known)
            seconds = np.where(columns.flags(PIXELS, IM2COL), seconds, in_patches)
        if self.given is None:
            return seconds
        written = [folding_of(self.given, overlapped) for overlapped in (False, True)]
        times = [known.launch_seconds + 2 * f.images.bytes / known.memory_bytes_per_second for f in written if f]
        folded: NDArray[np.float64] = seconds + np.array(times)[columns.ints(OVERLAPPED)]
        return folded

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        gemm = self.patched.get(str(setting[PIXELS]), self.gemm)
        assert gemm.window is not None
        window = replace(gemm.window, taps_innermost=bool(setting[K_ORDER.name]))
        product, sizes = replace(gemm, window=window), self.sizes_of(setting)
        if self.given is None:
            return lower_gemm(product, KERNEL_NAME, sizes)
        return lower_gemm(product, KERNEL_NAME, sizes, partial(_fold, self.given, bool(setting[OVERLAPPED])))


@dataclass(frozen=True)
class JoinedPlan(Plan):
    """One convolution with groups of few channels on one target. ``plans``: how many groups are joined -> the plan of
    that product."""

    plans: Mapping[int, ConvPlan]

    @property
    def knobs(self) -> tuple[Knob, ...]:
        why = "how many groups are joined, whose channels fill rows of 128 bytes in shared memory"
        return (*self.plans[1].knobs, Knob(JOINED, tuple(self.plans), why))

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        return tuple(_if_joined(count, rule) for count, plan in self.plans.items() for rule in plan.constraints)

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        """What is promising for any number of groups, and takes little longer than the best of all by the prior."""
        prior, kept = self.prior_seconds(columns, peaks), np.zeros(len(columns), dtype=bool)
        for rows, plan in self._rows(columns):
            kept[rows] = plan.promising(columns.kept(rows), peaks)
        return best_by_prior(prior, kept, PRUNING.most_settings, PRUNING.close_if_images)

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> NDArray[np.float64]:
        seconds = np.zeros(len(columns))
        for rows, plan in self._rows(columns):
            seconds[rows] = plan.prior_seconds(columns.kept(rows), peaks)
        return seconds

    def derive(self, columns: Columns) -> Mapping[str, NDArray[np.float64]]:
        found = {q.name: np.zeros(len(columns)) for q in QUANTITIES}
        for rows, plan in self._rows(columns):
            for name, values in plan.derive(columns.kept(rows)).items():
                found[name][rows] = values
        return found

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        others = {name: value for name, value in setting.items() if name != JOINED}
        return self.plans[int(setting[JOINED])].lower(others)

    def _rows(self, columns: Columns) -> Iterator[tuple[Bools, ConvPlan]]:
        """The settings of each plan."""
        for count, plan in self.plans.items():
            yield columns.flags(JOINED, count), plan


def _if_joined(count: int, rule: Constraint) -> Constraint:
    """``rule`` where so many groups are joined."""
    meaning = f"{rule.meaning} (if {JOINED} is {count})"
    return Constraint(meaning, (*rule.knobs, JOINED), lambda c: ~c.flags(JOINED, count) | rule.holds(c))


def _fold(given: Gemm, overlapped: bool, w: FreshNameWriter, product: Gemm) -> tuple[Gemm, tuple[Buffer, ...]]:
    """Write the launch that folds images and filters of ``given``; the product on them, and the workspace for them."""
    assert given.window is not None and product.window is not None
    rows = replace(product, a=given.a, b=given.b, window=replace(given.window, patch=product.window.patch))
    folding = folding_of(rows, overlapped, w.fresh("folded_images"), w.fresh("folded_filters"))
    assert folding is not None
    folding.write(w)
    return folding.product(), (folding.images, folding.filters)


def _rows_of_a_load(columns: Columns) -> Ints:
    """How many rows of A a CTA loads for one k atom: those of its tile, shared out among the CTAs that need it."""
    groups = columns.ints("consumer_warpgroups")
    atoms = columns.ints("atoms_m") * np.where(columns.ints("ping_pong") == 1, 1, groups)
    rows: Ints = WGMMA_M * atoms // columns.ints("cluster_n")
    return rows


def _plan(workload: Workload, target: Target) -> ConvPlan | JoinedPlan | None:
    if target.arch != ARCHITECTURE or skinny_gemm_of(workload) is not None or CUDA_GEMM.matches(workload, target):
        return None
    gemm = implicit_gemm_of(workload)
    folding = None if gemm is None else folding_of(gemm)
    product = gemm if folding is None else folding.product()
    if product is None or not can_use_wgmma(product):
        return None
    plan = ConvPlan(product, target, _patched(workload, product), None if folding is None else gemm)
    count = joinable_groups(product)
    return plan if count == 1 else JoinedPlan({1: plan, count: _joined(plan, count)})


def _joined(plan: ConvPlan, count: int) -> ConvPlan:
    """The plan of the product of joined groups."""
    patched = {name: join_groups(gemm, count) for name, gemm in plan.patched.items()}
    return replace(plan, gemm=join_groups(plan.gemm, count), patched=patched)


def _patched(workload: Workload, gemm: Gemm) -> Mapping[str, Gemm]:
    """The products whose rows come patch by patch, for windows that move pixel by pixel."""
    assert gemm.window is not None
    found = dict[str, Gemm]()
    for patch in gemm.window.patches(WGMMA_M) if set(gemm.window.strides) == {1} else ():
        if len(found) == MOST_PATCHES:
            break
        product = implicit_gemm_of(workload, patch)
        folding = None if product is None else folding_of(product)
        product = product if folding is None else folding.product()
        if product is not None and can_store_by_tma(product) == can_store_by_tma(gemm):
            found["x".join(map(str, patch))] = product
    return found


CUDA_CONV = TileSketch("cuda_conv", VERSION, QUANTITIES, _plan)
