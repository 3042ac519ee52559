"""Convolutions on Hopper, by im2col TMA and wgmma: those of the settings of a product, and the order of k.

Images and filters are 16-bit floats, or float32 that the precision lets matrix units round to TF32. The channels of an
image are side by side (NHWC and its kin). There are one to three dimensions, with padding, strides and dilations. TF32
wants filters K-major, (filter, taps, channel); others are packed by a first launch. Groups are a batch of products;
those of few channels are widened (``widen``) or joined (``join``). Places in a row that are side by side may be loaded
as one (``row_taps``), of images whose rows a first launch pads where they need it (``row_padding``), and windows that
move by several pixels may move by one wide pixel (``space_to_depth``). Epilogues are those of ``cuda_gemm``.
Outputs may also have their pixels side by side (NCHW), or channels that become pixels, as those of a transposed
convolution do. What ``cuda_gemm`` takes, a window of one place that moves pixel by pixel, is left to it. Images of few
channels are folded by a first launch (``fold``), and so are rows with one channel. Others that TMA cannot load, since
pixels do not begin at multiples of 16 bytes, are repacked by one.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.buffer import Buffer
from ....ir.gpu.wgmma import SWIZZLE_128B_ELEMENTS, SWIZZLE_LINES, WGMMA_M
from ....ir.stmt import Kernel
from ....te.workload import Workload
from ...loop_nest.nest import KERNEL_NAME
from ...problems.gemm import Gemm, Operand, gemm_of, skinny_gemm_of
from ...problems.image_window import ImageWindow
from ...problems.implicit_gemm import implicit_gemm_of
from ...sketch import Peaks
from ...space.columns import Bools, Columns, Derived, Floats, Ints
from ...space.constraint import Constraint
from ...space.knob import Knob
from ...space.pruning import best_by_prior
from ...tile.names import FreshNameWriter
from ...tile_sketch import Plan, TileSketch
from ..gemm.k_atoms import b_along_k, joined_groups
from ..gemm.kernel import lower_gemm
from ..gemm.mainloop import can_use_wgmma
from ..gemm.mma_atom import wgmma_atom
from ..gemm.prior import prior_seconds
from ..gemm.result_box import can_store_by_tma, can_store_staged_rows
from ..gemm.space import ARCHITECTURE, CUDA_GEMM, PRUNING, QUANTITIES, GemmPlan
from ..peaks import GpuPeaks, gpu_peaks
from .fold import folding_of
from .join import join_groups, joinable_groups
from .row_padding import RowPadding, row_padding_of
from .row_taps import join_row_taps
from .space_to_depth import SpaceToDepth, space_to_depth_of
from .widen import widening_of

VERSION = 2
"""The version of the sketch. It grows whenever knobs, legality or lowering change what a schedule means."""

K_ORDER = Knob(
    "taps_innermost", (0, 1), "whether k goes through all taps of 128 bytes of channels before the next channels"
)
PIXELS, IM2COL = "pixels", "im2col"
"""The knob that says how pixels are loaded, and its value where they are loaded by im2col. Other values are patches."""
JOINED = "joined_groups"
"""The knob that says how many groups are joined."""
ROW_TAPS = "row_taps"
"""The knob that says how many places in a row of pixels a window sees at once."""
HALO = "halo"
"""How values of the knob ``pixels`` begin that are patches with a halo."""
SPACE_TO_DEPTH = "space_to_depth"
"""The knob that says how many pixels in a row are one, where windows move by so many."""
PACK_B = "pack_b"
"""The knob that says whether filters are packed."""
WIDENED = "widened_groups"
"""This knob is no choice. It says in the schedule why there is a launch before the product."""
OVERLAPPED = "overlapped"
"""The knob that says how images of few channels are folded."""
FAR = 2.0
"""Of several products, settings are tried whose prior is at most so many times the least."""
RUN = 8
"""Of so many pixels of 32 bits side by side, sectors of memory are stored as a whole."""
MOST_PATCHES = 2
"""So many kinds of patches are tried: those of the fewest images, and of these the most even ones."""


@dataclass(frozen=True)
class ConvPlan(GemmPlan):
    """One convolution on one target. ``patched``: the same product for each kind of patch, by its name. ``given``: the
    product of the workload, where ``gemm`` is a product on folded images or of widened groups. ``row_taps``: how many
    places in a row ``gemm`` has joined to one. ``padding``: how rows of images are padded for that, if so.
    ``space_to_depth``: how windows see wide pixels in ``gemm``, where they do."""

    patched: Mapping[str, Gemm]
    given: Gemm | None = None
    row_taps: int = 1
    padding: RowPadding | None = None
    space_to_depth: SpaceToDepth | None = None

    @property
    def pixels(self) -> tuple[str, ...]:
        """The ways to load pixels."""
        window = self.gemm.window or self.gemm.b_window
        assert window is not None
        if window.halo is not None:
            return (f"{HALO}_{_name(window)}",)
        return (_name(window),) if window.patch else (IM2COL, *self.patched)

    @property
    def joined_groups(self) -> int:
        return joined_groups(self.gemm)

    @property
    def wide_pixels(self) -> int:
        """How many pixels in a row are one."""
        return 1 if self.space_to_depth is None else self.space_to_depth.stride

    @property
    def product_knobs(self) -> Mapping[str, KnobValue]:
        """The values of the knobs that say which product it is."""
        packed = self.gemm.window is not None and self.gemm.window.packs_filters
        own = {JOINED: self.joined_groups, ROW_TAPS: self.row_taps, SPACE_TO_DEPTH: self.wide_pixels}
        return {**own, PACK_B: int(packed)}

    def has(self, columns: Columns) -> Bools:
        """Return which settings are of this plan, bool[n]."""
        loaded = [columns.flags(PIXELS, value) for value in self.pixels]
        rows: Bools = np.any(loaded, axis=0)
        for name, value in self.product_knobs.items():
            rows &= columns.flags(name, value)
        return rows

    @property
    def knobs(self) -> tuple[Knob, ...]:
        meaning = (
            "how pixels are loaded: by im2col, or in boxes of images x pixels along each dimension; with a halo, all "
            "taps along one dimension read from a box"
        )
        return (*super().knobs, *self._folded, K_ORDER, Knob(PIXELS, self.pixels, meaning))

    @property
    def _folded(self) -> tuple[Knob, ...]:
        """How images are folded, or how many groups are widened to one, where they are."""
        if self.given is None or self.given.window is None:
            return ()
        if (widening := widening_of(self.given)) is not None:
            why = f"groups are widened first, since they have {self.given.window.channels} channels"
            return (Knob(WIDENED, (widening.count,), f"how many groups become one: {why}"),)
        folding = folding_of(self.given)
        assert folding is not None
        why = f"images are folded first, since pixels have {self.given.window.channels} channels"
        values = (1, 0) if folding.overlapped else (0,)
        return (Knob(OVERLAPPED, values, f"whether what windows see overlaps, or is written for each of them: {why}"),)

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        return (*super().constraints, *self._of_window)

    @property
    def _of_window(self) -> tuple[Constraint, ...]:
        """What the window asks for."""
        window = self.gemm.window
        assert window is not None
        line = wgmma_atom(self.gemm).line
        ordered = window.tap_count > window.halo_taps and window.channels > line
        rule = Constraint(
            f"taps_innermost is 0 where it changes no order: with one load for all taps, or {line} channels at most",
            (K_ORDER.name,),
            lambda c: (c.ints(K_ORDER.name) == 0) | ordered,
        )
        whole = Constraint(
            f"pixels are loaded by {IM2COL} where a CTA loads no whole patches of {WGMMA_M} rows of A",
            ("consumer_warpgroups", "ping_pong", "atoms_m", "cluster_n", PIXELS),
            lambda c: c.flags(PIXELS, IM2COL) | (_rows_of_a_load(c) % WGMMA_M == 0),
        )
        return rule, whole

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> Floats:
        """As for products. Patches take as long as a matrix to load, pixels by im2col may take longer. Folded images
        are written and read once."""
        seconds, known = super().prior_seconds(columns, peaks), gpu_peaks(self.target, peaks)
        patched = next(iter(self.patched.values()), None)
        if patched is not None:
            in_patches = prior_seconds(patched, self.sizes(columns), known)
            seconds = np.where(columns.flags(PIXELS, IM2COL), seconds, in_patches)
        if self.padding is not None:
            return seconds + _copied_seconds(self.padding.images, known)
        given = self.given if self.space_to_depth is None else self.space_to_depth.gemm
        filters = None if given is None else given.b.load
        writing = 0.0 if filters is not None and self.gemm.is_constant(filters.buffer) else known.launch_seconds
        if self.space_to_depth is not None:
            return seconds + writing
        if self.given is None:
            return seconds
        if widening_of(self.given) is not None:
            return seconds + writing
        # both are the same where what windows see does not overlap
        written = [folding_of(self.given, overlapped) for overlapped in (False, True)]
        times = [_copied_seconds(f.images, known) for f in written if f]
        folded: Floats = seconds + np.array(times)[columns.ints(OVERLAPPED)]
        return folded

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        gemm = self.patched.get(str(setting[PIXELS]), self.gemm)
        assert gemm.window is not None
        window = replace(gemm.window, taps_innermost=bool(setting[K_ORDER.name]))
        product, sizes = replace(gemm, window=window), self.sizes_of(setting)
        if self.padding is not None:
            return lower_gemm(product, KERNEL_NAME, sizes, partial(_pad_rows, self.padding))
        if self.space_to_depth is not None:
            return lower_gemm(product, KERNEL_NAME, sizes, partial(_write_wide_filters, self.space_to_depth))
        if self.given is None:
            return lower_gemm(product, KERNEL_NAME, sizes)
        if WIDENED in setting:
            return lower_gemm(product, KERNEL_NAME, sizes, partial(_widen, self.given))
        return lower_gemm(product, KERNEL_NAME, sizes, partial(_fold, self.given, bool(setting[OVERLAPPED])))


@dataclass(frozen=True)
class ConvPlans(Plan):
    """One convolution on one target. Each of ``plans`` has the product for some values of the knobs that say how pixels
    are loaded, and how many groups are joined."""

    plans: tuple[ConvPlan, ...]

    @property
    def knobs(self) -> tuple[Knob, ...]:
        *others, pixels = self.plans[0].knobs
        values = dict.fromkeys(value for plan in self.plans for value in plan.pixels)
        knobs = (*others, replace(pixels, values=tuple(values)))
        return (*knobs, *self._of_plans)

    @property
    def _of_plans(self) -> tuple[Knob, ...]:
        """The knobs that say which product it is, where there are several."""
        groups = "how many groups are joined, whose channels fill rows of 128 bytes in shared memory"
        taps = "how many places in a row of pixels a window sees at once, whose channels fill such rows"
        taps += ": rows of images are padded first" if any(plan.padding for plan in self.plans) else ""
        wide = "how many pixels in a row are one with the channels of all, by which windows move one by one"
        wide += ": filters are written for that first"
        packed = "whether filters are packed first, in rows along the channels, so that no parts of rows are empty"
        meanings = {JOINED: groups, ROW_TAPS: taps, SPACE_TO_DEPTH: wide, PACK_B: packed}
        values = {name: tuple(dict.fromkeys(plan.product_knobs[name] for plan in self.plans)) for name in meanings}
        return tuple(Knob(name, values[name], meanings[name]) for name in meanings if len(values[name]) > 1)

    @property
    def defaults(self) -> Mapping[str, KnobValue]:
        return {JOINED: 1, ROW_TAPS: 1, SPACE_TO_DEPTH: 1, PACK_B: 0}

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        rules = tuple(self._where(plan, rule) for plan in self.plans for rule in plan.constraints)
        known = Constraint(
            f"{ROW_TAPS} is 1 where pixels are loaded with a halo along a row",
            (PIXELS, *(knob.name for knob in self._of_plans)),
            lambda c: np.any([plan.has(c) for plan in self.plans], axis=0),
        )
        return (*rules, known) if len(self.plans) > 1 else rules

    def _where(self, plan: ConvPlan, rule: Constraint) -> Constraint:
        """``rule`` for the settings of ``plan``."""
        if len(self.plans) == 1:
            return rule
        names = (PIXELS, *(knob.name for knob in self._of_plans))
        values = f"{PIXELS} is {' or '.join(plan.pixels)}"
        for name, value in plan.product_knobs.items():
            values += f" and {name} is {value}" if name in names else ""

        def holds(columns: Columns) -> Bools:
            found, rows = np.ones(len(columns), dtype=bool), plan.has(columns)
            if rows.any():
                found[rows] = rule.holds(columns.kept(rows))
            return found

        return Constraint(f"{rule.meaning} (if {values})", tuple(dict.fromkeys((*rule.knobs, *names))), holds)

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        """Return what is promising for its product, and does not take much longer than the best of all by the prior."""
        prior, kept = self.prior_seconds(columns, peaks), np.zeros(len(columns), dtype=bool)
        for plan in self.plans:
            rows = plan.has(columns)
            kept[rows] = plan.promising(columns.kept(rows), peaks)
        return best_by_prior(prior, kept, PRUNING.most_settings, FAR)

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> Floats:
        seconds = np.zeros(len(columns))
        for plan in self.plans:
            rows = plan.has(columns)
            seconds[rows] = plan.prior_seconds(columns.kept(rows), peaks)
        return seconds

    def derive(self, columns: Columns) -> Derived:
        found = {q.name: np.zeros(len(columns)) for q in QUANTITIES}
        for plan in self.plans:
            rows = plan.has(columns)
            for name, values in plan.derive(columns.kept(rows)).items():
                found[name][rows] = values
        return found

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        wanted = {name: setting.get(name, value) for name, value in self.defaults.items()}
        (plan,) = (p for p in self.plans if setting[PIXELS] in p.pixels and wanted == p.product_knobs)
        # a knob with one value, which says why a launch stands in front, is not one of all plans
        return plan.lower({knob.name: setting.get(knob.name, knob.values[0]) for knob in plan.knobs})


def _fold(given: Gemm, overlapped: bool, w: FreshNameWriter, product: Gemm) -> tuple[Gemm, tuple[Buffer, ...]]:
    """Write the launch that folds images and filters of ``given``; ``product`` on them, and the workspace for them."""
    folding = folding_of(given, overlapped, w.fresh("folded_images"), w.fresh("folded_filters"))
    assert folding is not None
    folding.write(w)
    a, b = _on(product.a, folding.seen), _on(product.b, folding.filters)
    return replace(product, a=a, b=b), (folding.images, folding.filters)


def _pad_rows(padding: RowPadding, w: FreshNameWriter, product: Gemm) -> tuple[Gemm, tuple[Buffer, ...]]:
    """Write the launch that pads rows of images; ``product`` on them, and the workspace for them."""
    assert product.a.load is not None
    images = replace(padding.images, name=w.fresh(padding.images.name))
    replace(padding, images=images).write(w)
    seen = replace(product.a.load.buffer, name=images.name)
    return replace(product, a=_on(product.a, seen)), (images,)


def _write_wide_filters(seen: SpaceToDepth, w: FreshNameWriter, product: Gemm) -> tuple[Gemm, tuple[Buffer, ...]]:
    """Write the launch of the filters for wide pixels; ``product`` with them, and the workspace for them."""
    filters = replace(seen.filters, name=w.fresh(seen.filters.name))
    replace(seen, filters=filters).write(w)
    return replace(product, b=_on(product.b, filters)), (filters,)


def _copied_seconds(images: Buffer, peaks: GpuPeaks) -> float:
    """Return how long a launch takes that copies images, and how long it takes to read the copy."""
    return peaks.launch_seconds + 2 * images.bytes / peaks.memory_bytes_per_second


def _widen(given: Gemm, w: FreshNameWriter, product: Gemm) -> tuple[Gemm, tuple[Buffer, ...]]:
    """Write the launch that widens the filters of ``given``; ``product`` on them, and the workspace for them."""
    widening = widening_of(given, w.fresh("widened_filters"))
    assert widening is not None
    widening.write(w)
    assert product.b.load is not None
    seen = replace(product.b.load.buffer, name=widening.filters.name)
    return replace(product, b=_on(product.b, seen)), (widening.filters,)


def _on(operand: Operand, tensor: Buffer) -> Operand:
    """``operand`` read from another tensor."""
    assert operand.load is not None
    load = replace(operand.load, buffer=tensor)
    return replace(operand, body=load, load=load)


def _rows_of_a_load(columns: Columns) -> Ints:
    """Return how many rows of A a CTA loads for one k atom: those of its tile, shared out among the CTAs that need
    it."""
    groups = columns.ints("consumer_warpgroups")
    atoms = columns.ints("atoms_m") * np.where(columns.ints("ping_pong") == 1, 1, groups)
    rows: Ints = WGMMA_M * atoms // columns.ints("cluster_n")
    return rows


def _plan(workload: Workload, target: Target) -> ConvPlans | None:
    if target.arch != ARCHITECTURE or skinny_gemm_of(workload) is not None:
        return None
    plain = gemm_of(workload) if CUDA_GEMM.matches(workload, target) else None
    gemm = None if plain is not None and not plain.batch else _implicit_gemm(workload)
    product = None if gemm is None else _product(workload)
    if gemm is None or product is None or not can_use_wgmma(product):
        return None
    if plain is not None and plain.m.extent >= gemm.m.extent:
        return None  # in products of phases that lie between rows of pixels, a batch has a product for each row
    given = gemm if folding_of(gemm) or widening_of(gemm) else None
    patched = _patched(workload, product)
    plans = [ConvPlan(product, target, {} if product.along_pixels else patched, given)]
    if product.along_pixels:  # patches may have other numbers of rows
        plans += [ConvPlan(other, target, {}, given) for other in patched.values()]
    plans += [ConvPlan(found, target, {}, given) for found in _with_halo(workload, product)]
    count = joinable_groups(product)
    joined = [_joined(plan, count) for plan in plans] if count > 1 else []
    in_rows = [_with_row_taps(plan) for plan in plans] if given is None else []
    wide = _on_wide_pixels(workload, plans[0]) if given is None else ()
    packed = _packed(plans) if given is None else ()
    return ConvPlans((*plans, *joined, *(plan for plan in in_rows if plan is not None), *wide, *packed))


def _product(workload: Workload, patch: tuple[int, ...] = (), halo: int | None = None) -> Gemm | None:
    """Return the product, on folded images or widened groups where channels are few; None where there is none.
    ``patch`` and ``halo`` are on its dimensions: folded images may have one of planes."""
    gemm = _implicit_gemm(workload)
    if gemm is not None and gemm.window is not None and len(patch) > len(gemm.window.taps) + 1:
        patch, halo = (patch[0], *patch[2:]), None if halo is None else halo - 1
    gemm = _implicit_gemm(workload, patch, halo)
    prepared = None if gemm is None else folding_of(gemm) or widening_of(gemm)
    return gemm if prepared is None else prepared.product()


def _implicit_gemm(workload: Workload, patch: tuple[int, ...] = (), halo: int | None = None) -> Gemm | None:
    """Return the product whose results are contiguous along the filters, or else along the pixels. Eight of those are a
    sector of memory if they are words, or pairs of filters, or share sectors with those of other phases; others are
    staged."""
    gemm = implicit_gemm_of(workload, patch, halo)
    if gemm is not None:
        return gemm
    gemm = implicit_gemm_of(workload, patch, halo, along_n=False)
    if gemm is None or all(r.tensor.dtype.bits == 32 or r.last_digit or r.phases > 1 for r in gemm.results):
        return gemm
    return gemm if can_store_staged_rows(gemm) else None


def _patches(gemm: Gemm, *, ragged: bool = False) -> tuple[tuple[int, ...], ...]:
    """Return the patches of the rows of a wgmma, if windows move pixel by pixel along some dimension. Along others they
    have one pixel. ``ragged``: whether they may go beyond the last pixel. Those of pixels that threads store by sectors
    always may."""
    window = gemm.window
    assert window is not None
    if gemm.along_pixels:
        found = window.ragged_patches(WGMMA_M, RUN)
    else:
        found = window.ragged_patches(WGMMA_M, 1) if ragged else window.patches(WGMMA_M)
    strides = [(n, stride) for n, stride in enumerate(window.strides, 1) if stride > 1]
    apart = len(strides) == len(window.strides)
    return () if apart else tuple(patch for patch in found if all(patch[n] == 1 for n, _ in strides))


def _joined(plan: ConvPlan, count: int) -> ConvPlan:
    """Return the plan of the product of joined groups."""
    patched = {name: join_groups(gemm, count) for name, gemm in plan.patched.items()}
    return replace(plan, gemm=join_groups(plan.gemm, count), patched=patched)


def _with_row_taps(plan: ConvPlan) -> ConvPlan | None:
    """Return the plan whose windows see all places in a row at once, on padded images where they see padding; None
    where they cannot."""
    padding = row_padding_of(plan.gemm)

    def joined(gemm: Gemm) -> Gemm | None:
        padded = row_padding_of(gemm)
        return join_row_taps(gemm if padded is None else padded.product())

    found = {name: joined(gemm) for name, gemm in plan.patched.items()}
    gemm, patched = joined(plan.gemm), {name: gemm for name, gemm in found.items() if gemm is not None}
    if gemm is None or plan.gemm.window is None or len(patched) < len(found):
        return None
    return replace(plan, gemm=gemm, patched=patched, row_taps=plan.gemm.window.taps[-1], padding=padding)


def _patched(workload: Workload, gemm: Gemm) -> Mapping[str, Gemm]:
    """Return the products whose rows come patch by patch, for windows that move pixel by pixel."""
    assert gemm.window is not None
    found = dict[str, Gemm]()
    for patch in _patches(gemm):
        if len(found) == MOST_PATCHES:
            break
        product = _product(workload, patch)
        if product is not None and can_store_by_tma(product) == can_store_by_tma(gemm):
            assert product.window is not None
            found[_name(product.window)] = product
    return found


def _with_halo(
    workload: Workload, gemm: Gemm, seen: Callable[[Gemm], Gemm | None] = lambda gemm: gemm
) -> tuple[Gemm, ...]:
    """Return the products whose rows come in patches with a halo: in whole ones, and in those that may go beyond the
    last pixel where fewer pixels are loaded so; where each tap begins to read at a whole period of the swizzle, and
    anywhere. There are none where a halo saves no loads, or TMA cannot store the results. ``seen``: what makes ``gemm``
    of the product of the workload."""
    assert gemm.window is not None
    # the dimension of the halo is the slowest one of a patch
    dimensions = len(gemm.window.taps) - gemm.along_pixels
    found = dict[str, Gemm]()
    for unit, ragged in itertools.product((SWIZZLE_LINES, 1), (False, True)):
        window = gemm.window.with_halo(WGMMA_M, unit, _patches(gemm, ragged=ragged), dimensions)
        given = None if window is None else _product(workload, window.patch, window.halo)
        patched = None if given is None else seen(given)
        if patched is not None and can_store_by_tma(patched) == can_store_by_tma(gemm):
            assert patched.window is not None
            found.setdefault(_name(patched.window), patched)
    return tuple(found.values())


def _on_wide_pixels(workload: Workload, plan: ConvPlan) -> tuple[ConvPlan, ...]:
    """Return the plans whose windows move by one wide pixel in a row. Patches have a halo, since more is multiplied."""

    def seen(gemm: Gemm) -> Gemm | None:
        found = space_to_depth_of(gemm)
        return None if found is None else found.product()

    wide = space_to_depth_of(plan.gemm)
    products = () if wide is None else _with_halo(workload, wide.product(), seen)
    return tuple(replace(plan, gemm=gemm, patched={}, space_to_depth=wide) for gemm in products)


def _packed(plans: Sequence[ConvPlan]) -> tuple[ConvPlan, ...]:
    """Return ``plans`` with packed filters, where rows of 128 bytes along the filters would be loaded in part for
    nothing."""

    def of(gemm: Gemm) -> Gemm:
        assert gemm.window is not None
        return replace(gemm, window=replace(gemm.window, packs_filters=True))

    gemm = plans[0].gemm
    if gemm.batch or b_along_k(gemm) or gemm.n.extent % SWIZZLE_128B_ELEMENTS == 0:
        return ()
    found = (replace(p, gemm=of(p.gemm), patched={name: of(g) for name, g in p.patched.items()}) for p in plans)
    return tuple(plan for plan in found if can_use_wgmma(plan.gemm))


def _name(window: ImageWindow) -> str:
    return "x".join(map(str, window.patch))


CUDA_CONV = TileSketch("cuda_conv", VERSION, QUANTITIES, _plan)
