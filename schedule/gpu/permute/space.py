"""Describes the space of permuting copies: knobs, constraints, derived sizes and the prior (sketch
``cuda_permute``)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np

from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.expr import WARP_LANES
from ....ir.stmt import Kernel
from ....te.cost import flops, minimum_bytes
from ....te.workload import Axis
from ...problems.permute import Permute, permute_of
from ...sketch import Peaks
from ...space.columns import Bools, Columns, Derived, Floats, Ints, derived_once
from ...space.constraint import Constraint
from ...space.knob import Knob, Quantity
from ...tile_sketch import TileSketch, planned
from ..memory_prior import MemoryTraffic, memory_bound_seconds
from ..occupancy import MOST_BLOCKS
from ..peaks import gpu_peaks
from ..plan import GpuPlan
from ..quantities import GPU_QUANTITIES, gpu_columns
from .kernel import CHUNK_BYTES, LINE_BYTES, PermuteOptions, PermuteSizes, permute_kernel
from .tile_rows import BANK_WORD_BYTES, bank_conflicts, input_rows, shared_elements, tile_rows

SECTOR_BYTES = 32
"""Bytes of a sector, the part of a cache line that is moved as a whole."""
ALIGNMENTS = (BANK_WORD_BYTES, SECTOR_BYTES, LINE_BYTES)
"""Bytes of a word, of a sector and of a cache line: what a store may have as a whole."""
COPY_BYTES = (8, 16)
"""Bytes of an asynchronous copy. On an H200 copies of 4 bytes took 5 % longer than those of 8."""
COPYING_REGISTERS, COMPUTING_REGISTERS = 16, 32
"""Registers of a thread whose tile is copied, besides ``SPARE_REGISTERS``, and those more where outputs are computed
(from compiled kernels)."""
TILE_BYTES = (64, 128, 256, 512)
"""Contiguous bytes of a tile along either side, in elements of the input's size."""
PROMISING_TILE_BYTES = (128, 256)
"""The best settings have these (measured, of those in ``TILE_BYTES``)."""
COPIED_TILE_BYTES = ((128, 256, 512), (128, 256))
"""The same along the input's and the output's axis where tiles are copied as they are."""
SPARE_REGISTERS = 16
"""Registers for addresses and constants, roughly (from compiled kernels)."""
PROMISING_THREAD_BYTES = 256
"""Most bytes of the input that a thread of a promising setting loads at once."""
PARTIAL_LINE_COST = 0.1
"""How much more memory moves for each further part in which a line is accessed (an estimate)."""
SKEWED_LINE_COST = 0.06
"""The same for the line more that each row of a tile touches where rows of the input begin anywhere, and for each row
that tiles with aligned stores load again (from odd transposes on an H200)."""
SPLIT_SECTORS = 1.35
"""How much longer it takes where stores split sectors: a third, on an H200."""
NARROW_LOADS = 1.15
"""How much longer it takes where each load brings less than a word (16-bit elements, the same)."""
COPIED_THREAD_BYTES, UNLIKE_THREADS = 40, 0.03
"""How many bytes a thread best moves of tiles that are copied, and how much longer it takes for each doubling or
halving (the same)."""
WIDE_COPIES = 1.02
"""How much longer it takes with copies of 16 bytes than with those of 8: 2 % to 4 % while L1 did not keep their sectors
(the same)."""
EVICTING = 1.05
"""How much longer it takes where lines are to be evicted first: 4 % and 6 % on an H200, the medians of all pairs of
settings of two permutations that differ in nothing else."""
READING_IN_ORDER = 1.02
"""The same where tiles that run together lie along the input: 4 % where its rows are a power of two, else nothing."""
WASTE = 1.3
"""How much larger than the smallest cover by tiles a promising cover is at most."""

QUANTITIES = (
    *GPU_QUANTITIES,
    Quantity("tile_in_bytes", "B", "contiguous bytes of the input in a tile"),
    Quantity("tile_out_bytes", "B", "contiguous bytes of the output in a tile"),
    Quantity("thread_bytes", "B", "bytes of the input that a thread moves"),
)


@dataclass(frozen=True)
class PermutePlan(GpuPlan):
    """The settings of a permuting copy on a target."""

    problem: Permute
    target: Target

    @property
    def _element_bytes(self) -> int:
        """The size of an element of the input; of the widest, where there are several inputs."""
        return max(r.load.dtype.bytes for r in self.problem.transposed_loads)

    @property
    def knobs(self) -> tuple[Knob, ...]:
        tiles_in, tiles_out = self._tiles(TILE_BYTES)
        promising_in, promising_out = self._tiles(PROMISING_TILE_BYTES)
        return (
            Knob(
                "vector_width", self._vector_widths(), "how many contiguous elements a thread loads or stores at once"
            ),
            Knob("tile_in", _union(promising_in, tiles_in), "elements of a tile along the input's contiguous axis"),
            Knob("tile_out", _union(promising_out, tiles_out), "elements of a tile along the output's contiguous axis"),
            Knob("threads", (128, 256, 512), "how many threads a block has"),
            Knob("layout", ("pad", "swizzle"), "how the columns of the tile are spread over the banks"),
            Knob("raster_order", ("along_input", "along_output"), "along which axis neighbouring blocks follow"),
            Knob("evict_first", (0, 1), "whether the data is marked as not worth keeping in caches"),
            Knob(
                "store_alignment",
                self._alignments(),
                "of how many bytes of the outputs' memory a tile has all or none; 0: tiles end where they end",
            ),
            *(
                (Knob("store_bytes", self._store_bytes, "how many bytes an aligned store has"),)
                if self._store_bytes
                else ()
            ),
            *(
                (
                    Knob(
                        "copy_bytes",
                        (0, *self._copy_bytes),
                        "how many bytes a copy to shared memory has, wherever rows begin; 0: vectors are loaded",
                    ),
                )
                if self._copy_bytes
                else ()
            ),
        )

    @property
    def defaults(self) -> Mapping[str, KnobValue]:
        return {"store_bytes": self._word * self._output_bytes, "copy_bytes": 0}

    @property
    def _output_bytes(self) -> int:
        return self.problem.stages[0].tensor.dtype.bytes

    @property
    def _store_bytes(self) -> tuple[int, ...]:
        """A word of shared memory, or the widest access, where some stores may be aligned."""
        word = self._word * self._output_bytes
        return (word, CHUNK_BYTES) if word < CHUNK_BYTES and max(self._alignments()) >= CHUNK_BYTES else ()

    @property
    def _copy_bytes(self) -> tuple[int, ...]:
        """The widest access and less, where rows of the input have no vectors of that size."""
        if not self.limits.async_copies:
            return ()
        vector = _widest_vector(CHUNK_BYTES, self.problem.input_axes) * self._narrowest_bytes
        return tuple(b for b in COPY_BYTES if b > vector and b >= self._element_bytes) if vector < CHUNK_BYTES else ()

    @property
    def _narrowest_bytes(self) -> int:
        return min(r.load.dtype.bytes for r in self.problem.transposed_loads)

    def _alignments(self) -> tuple[int, ...]:
        """Words, sectors and lines of memory, if a row of the outputs need not begin with a whole one."""
        stage = self.problem.stages[0]
        pitch = gcd(*(stage.tensor.strides[stage.axes.index(a)] for a in self.problem.pitch_axes), 1 << 20)
        size = stage.tensor.dtype.bytes
        words = self._word * size  # what is stored at once
        return (0, *(b for b in ALIGNMENTS if b > size and b % words == 0 and pitch * size % b))

    def _tiles(self, bytes_of_tiles: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the extents of tiles along the input's and the output's axis. Where one side is short, the other is
        longer by the same factor."""
        problem, size = self.problem, self._element_bytes
        tiles_in = _tile_extents(PROMISING_TILE_BYTES, size, problem.input_extent)
        tiles_out = _tile_extents(PROMISING_TILE_BYTES, size, problem.output_extent)
        factor_in = max(1, PROMISING_TILE_BYTES[0] // (tiles_out[-1] * size))
        factor_out = max(1, PROMISING_TILE_BYTES[0] // (tiles_in[-1] * size))
        return (
            _tile_extents([b * factor_in for b in bytes_of_tiles], size, problem.input_extent),
            _tile_extents([b * factor_out for b in bytes_of_tiles], size, problem.output_extent),
        )

    def _vector_widths(self) -> tuple[int, ...]:
        """Powers of two, the widest first, of which either side's innermost axis is made."""
        most = max(self._element_bytes, max(s.tensor.dtype.bytes for s in self.problem.stages))
        longest = max(_widest_vector(CHUNK_BYTES, axes) for axes in (self.problem.input_axes, self.problem.output_axes))
        return tuple(v for v in (16, 8, 4, 2, 1) if v * most <= CHUNK_BYTES and v <= longest)

    def _widths(self, vector_width: Ints) -> tuple[Ints, Ints, Ints]:
        """Return the widths of loads and of stores, and the rows that share a word of shared memory, where stores are
        not aligned."""
        values, rows = np.unique(vector_width, return_inverse=True)
        loads = [_widest_vector(int(v), self.problem.input_axes) for v in values]
        stores = [_widest_vector(int(v), self.problem.output_axes) for v in values]
        packs = [max(1, min(self._word, store)) for store in stores]
        load, store, pack = (np.array(found, np.int64)[rows] for found in (loads, stores, packs))
        return load, store, pack

    @property
    def _word(self) -> int:
        """Elements of a word of shared memory, at least one."""
        return max(1, BANK_WORD_BYTES // self._element_bytes)

    @derived_once
    def sizes(self, columns: Columns) -> PermuteSizes:
        problem, limits = self.problem, self.limits
        knobs = columns.named("tile_in", "tile_out", "threads", "copy_bytes")
        tile_in, tile_out, threads, copy_bytes = knobs.values()
        load_width, store_width, pack = self._widths(columns.ints("vector_width"))
        alignment = columns.ints("store_alignment") // self._output_bytes
        aligned = alignment > 0
        store_width = np.where(aligned, columns.ints("store_bytes") // self._output_bytes, store_width)
        copied = copy_bytes > 0
        pack = np.where(copied, 1, np.where(aligned, self._word, pack))
        tiles_out = -(-(problem.output_extent + np.where(aligned, alignment - 1, 0)) // tile_out)
        tiles = -(-problem.input_extent // tile_in) * tiles_out
        bytes_of_point = sum(r.load.dtype.bytes for r in problem.transposed_loads)
        # A padded row has one word more. A swizzle needs whole periods, of 8 vectors of the output.
        period, rows, padding = 8 * store_width, tile_out + alignment, np.maximum(pack, self._word)
        padded, swizzled = rows // pack * (tile_in * pack + padding), -(-tile_out // period) * period * tile_in
        shared_bytes = bytes_of_point * np.where(columns.flags("layout", "pad"), padded, swizzled)
        shared_bytes = np.where(copied, self._copied_bytes(tile_in, tile_out, alignment, copy_bytes), shared_bytes)
        thread_bytes = bytes_of_point * rows * tile_in // threads
        has_steps = any(len(input_rows(problem, r).steps) > 1 for r in problem.transposed_loads)
        stepped = has_steps & (tile_out * self._output_bytes > LINE_BYTES)
        computed = flops(problem.workload) > 0 or len(problem.transposed_loads) > 1
        copying = COPYING_REGISTERS + COMPUTING_REGISTERS * computed
        registers = SPARE_REGISTERS + np.where(copied, copying, thread_bytes // 4)
        resident = limits.resident_blocks(threads, registers, shared_bytes)
        return PermuteSizes(
            **knobs,
            load_width=load_width,
            store_width=store_width,
            pack=pack,
            alignment=alignment,
            padding=padding,
            tiles_out=tiles_out,
            blocks=tiles * problem.batch,
            shared_bytes=shared_bytes,
            thread_bytes=thread_bytes,
            registers=registers,
            resident=resident,
            min_blocks=np.where(copied & ~stepped & (not computed), resident, 0),
        )

    def _copied_bytes(self, tile_in: Ints, tile_out: Ints, alignment: Ints, copy_bytes: Ints) -> Ints:
        """Return the shared memory of tiles that are copied as they are."""
        total = np.zeros_like(tile_in)
        for masked in self.problem.transposed_loads:
            size = masked.load.dtype.bytes
            chunk = np.maximum(copy_bytes, self._element_bytes) // size
            rows = tile_rows(self.problem, masked, tile_in, chunk)
            total = total + size * shared_elements(rows, tile_out, alignment, chunk)
        return total

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        return (
            self.rule(
                "the tile of tile_in by tile_out elements fits in the shared memory of a block",
                ("vector_width", "tile_in", "tile_out", "layout", "store_alignment", "copy_bytes"),
                lambda s: s.shared_bytes <= self.limits.shared_bytes_per_block,
            ),
            Constraint(
                "the registers of the threads hold a tile of tile_in by tile_out elements",
                ("tile_in", "tile_out", "threads", "store_alignment", "copy_bytes"),
                self._tile_fits_in_registers,
            ),
            self.rule(
                "a launch has at most 2^31 - 1 blocks, which a larger tile_in or tile_out make fewer",
                ("tile_in", "tile_out", "store_alignment"),
                lambda s: s.blocks <= MOST_BLOCKS,
            ),
            Constraint(
                "with the layout swizzle, tile_in columns of a vector of vector_width elements have 32 bytes or more",
                ("vector_width", "tile_in", "layout"),
                self._swizzle_exists,
            ),
            Constraint(
                "vector_width is the widest of those that lead to the same loads and stores",
                ("vector_width", "store_alignment", "copy_bytes"),
                self._is_widest,
            ),
            Constraint(
                "tile_out elements of the first output are a whole number of store_alignment bytes",
                ("tile_out", "store_alignment"),
                self._tiles_are_aligned,
            ),
            Constraint(
                "with a store_alignment the layout is pad",
                ("layout", "store_alignment"),
                lambda columns: columns.flags("layout", "pad") | (columns.ints("store_alignment") == 0),
            ),
            Constraint(
                "store_alignment is a multiple of store_bytes, or 0 with the least store_bytes",
                ("store_alignment", "store_bytes"),
                self._stores_fit,
            ),
            Constraint(
                "with copy_bytes the layout is pad, and tile_in elements of an input are a whole number of copies",
                ("layout", "tile_in", "copy_bytes"),
                self._copies_fit,
            ),
        )

    def _tile_fits_in_registers(self, columns: Columns) -> Bools:
        threads, limits = columns.ints("threads"), self.limits
        available = np.minimum(limits.registers_per_thread, limits.registers_per_multiprocessor // threads)
        rows = columns.ints("tile_out") + columns.ints("store_alignment") // self._output_bytes
        elements = columns.ints("tile_in") * rows // threads  # of one input at a time
        fits = SPARE_REGISTERS + elements * self._element_bytes // 4 <= available
        fits |= columns.ints("copy_bytes") > 0
        return fits

    def _copies_fit(self, columns: Columns) -> Bools:
        copied = columns.ints("copy_bytes")
        row_bytes = columns.ints("tile_in") * self._narrowest_bytes
        found: Bools = (copied == 0) | (columns.flags("layout", "pad") & (row_bytes % np.maximum(copied, 1) == 0))
        return found

    def _tiles_are_aligned(self, columns: Columns) -> Bools:
        tile_bytes = columns.ints("tile_out") * self._output_bytes
        found: Bools = tile_bytes % np.maximum(columns.ints("store_alignment"), 1) == 0
        return found

    def _stores_fit(self, columns: Columns) -> Bools:
        alignment, stored = columns.ints("store_alignment"), columns.ints("store_bytes")
        found: Bools = np.where(alignment > 0, alignment % stored == 0, stored == self.defaults["store_bytes"])
        return found

    def _swizzle_exists(self, columns: Columns) -> Bools:
        """The swizzle takes bits of the address above those that it changes."""
        sizes = self.sizes(columns)
        narrowest = min(r.load.dtype.bytes for r in self.problem.transposed_loads)
        exists = sizes.tile_in * sizes.store_width * narrowest >= 2 * CHUNK_BYTES
        found: Bools = columns.flags("layout", "pad") | exists
        return found

    def _is_widest(self, columns: Columns) -> Bools:
        width = columns.ints("vector_width")
        found, widest = self._widths(width), np.ones(len(columns), dtype=bool)
        aligned = columns.ints("store_alignment") > 0  # stores and packing are the same, then
        copied = columns.ints("copy_bytes") > 0  # loads and packing are the same, then
        for wider in self._vector_widths():
            load, store, pack = (a == b for a, b in zip(found, self._widths(np.array([wider])), strict=True))
            widest &= ~((load | copied) & (aligned | (store & (pack | copied)))) | (width >= wider)
        return widest

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        sizes = self.sizes(columns)
        tile_in, tile_out, threads, pack = sizes.tile_in, sizes.tile_out, sizes.threads, sizes.pack
        tiles_in, tiles_out = self._tiles(PROMISING_TILE_BYTES)
        smallest_tile = (tile_in == tiles_in[0]) & (tile_out == tiles_out[0])
        rows = tile_out + sizes.alignment
        loads, stores = rows // pack * (tile_in // sizes.load_width), tile_in * (tile_out // sizes.store_width)
        full_threads = np.where(sizes.alignment > 0, 0, loads % threads) + stores % threads == 0
        little_waste = self._cover(tile_in, tile_out) <= WASTE * self._cover(tiles_in[0], tiles_out[0])
        shape = little_waste & full_threads & (threads != 128)
        shape |= smallest_tile & (full_threads | (threads == 128))
        # Swizzling is worth it only where all 8 chunks of 128 bytes take part.
        chunk, swizzled = CHUNK_BYTES // self._element_bytes, columns.flags("layout", "swizzle")
        spread = (pack * sizes.load_width >= chunk) & (tile_out // sizes.store_width >= 8)
        spread &= tile_in >= 8 * chunk // pack
        # Narrower vectors do as well where tiles fit, but hardly ever better: they come without the other variations.
        widths, width = self._vector_widths(), columns.ints("vector_width")
        plain = ~swizzled & columns.flags("evict_first", 0)
        wide = (width == widths[0]) | (plain & (width == widths[:2][-1]))
        promising = shape & wide & (~swizzled | spread) & (sizes.thread_bytes <= PROMISING_THREAD_BYTES)
        promising &= np.isin(tile_in, tiles_in) & np.isin(tile_out, tiles_out)
        promising &= sizes.resident >= 1
        promising &= (sizes.alignment == 0) | columns.flags("evict_first", 0)
        wider = (sizes.alignment > 0) & (columns.ints("store_alignment") % CHUNK_BYTES == 0)
        promising &= ~wider | (columns.ints("store_bytes") == max(self._store_bytes, default=CHUNK_BYTES))
        return np.where(sizes.copy_bytes > 0, self._promising_copies(columns), promising)

    def _promising_copies(self, columns: Columns) -> Bools:
        """Where tiles are copied as they are, registers do not bound them. They are worth it with wide stores of whole
        sectors, and with blocks that are neighbours along the output: the others took 4 % longer on an H200."""
        sizes = self.sizes(columns)
        tile_in, tile_out, threads = sizes.tile_in, sizes.tile_out, sizes.threads
        tiles_in, tiles_out = (self._tiles(sides)[n] for n, sides in enumerate(COPIED_TILE_BYTES))
        promising = np.isin(tile_in, tiles_in) & np.isin(tile_out, tiles_out)
        promising &= self._cover(tile_in, tile_out) <= WASTE * self._cover(tiles_in[0], tiles_out[0])
        smallest_tile = (tile_in == tiles_in[0]) & (tile_out == tiles_out[0])
        promising &= (tile_in * (tile_out // sizes.store_width) % threads == 0) | smallest_tile
        promising &= (sizes.resident >= 2) & (threads != 128)
        promising &= sizes.store_width * self._output_bytes == CHUNK_BYTES
        promising &= columns.ints("store_alignment") <= SECTOR_BYTES
        promising &= columns.flags("evict_first", 0) & columns.flags("raster_order", "along_output")
        return promising

    def _cover(self, tile_in: Ints | int, tile_out: Ints | int) -> Ints | int:
        """Elements of all tiles along both contiguous axes, those beyond the edges included."""
        columns = -(-self.problem.input_extent // tile_in) * tile_in
        rows = -(-self.problem.output_extent // tile_out) * tile_out
        return columns * rows

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> Floats:
        sizes, workload = self.sizes(columns), self.problem.workload
        bytes_moved = minimum_bytes(workload)
        shortest = np.minimum(sizes.tile_in, sizes.tile_out) * self._element_bytes
        partial_lines = np.maximum(LINE_BYTES / shortest - 1, 0)
        elements = self.problem.input_extent * self.problem.output_extent * self.problem.batch / WARP_LANES
        loads, stores = len(self.problem.transposed_loads), len(self.problem.stages)
        # Each element crosses memory by a vector, and shared memory by a word or more, on either side.
        chunks = loads * self._element_bytes / np.maximum(sizes.copy_bytes, 1)
        vectors = loads * (1 / sizes.load_width + 1 / sizes.pack)
        moves = np.where(sizes.copy_bytes > 0, chunks, vectors) + self._column_reads(sizes)
        tile_bytes = sizes.thread_bytes * sizes.threads * sizes.blocks
        copied, skewed = sizes.copy_bytes > 0, _widest_vector(CHUNK_BYTES, self.problem.input_axes) == 1
        repeated = sizes.alignment / sizes.tile_out + skewed * LINE_BYTES / (sizes.tile_in * self._element_bytes)
        # Threads of one block wait for all its copies. That makes no difference while there are others.
        resident = np.where(copied, np.maximum(sizes.resident * sizes.threads // 256, sizes.resident), sizes.resident)
        traffic = MemoryTraffic(
            blocks=sizes.blocks,
            resident=resident,
            memory_bytes=bytes_moved * (1 + PARTIAL_LINE_COST * partial_lines + SKEWED_LINE_COST * repeated),
            l2_bytes=bytes_moved * (1 + repeated / 2),
            accesses=elements * (moves + stores / sizes.store_width),
            shared_bytes=2 * tile_bytes,
            operations=flops(workload),
        )
        habits = np.where(columns.flags("evict_first", 1), EVICTING, 1.0)
        habits = np.where(columns.flags("raster_order", "along_input"), READING_IN_ORDER * habits, habits)
        splits = (sizes.alignment * self._output_bytes < SECTOR_BYTES) & (SECTOR_BYTES in self._alignments())
        habits = np.where(splits, SPLIT_SECTORS * habits, habits)
        narrow = ~copied & (sizes.load_width * self._element_bytes < BANK_WORD_BYTES)
        habits = np.where(narrow, NARROW_LOADS * habits, habits)
        doublings = np.abs(np.log2(np.maximum(sizes.thread_bytes, 1) / COPIED_THREAD_BYTES))
        habits = np.where(copied, (1 + UNLIKE_THREADS * doublings) * habits, habits)
        habits = np.where(sizes.copy_bytes == CHUNK_BYTES, WIDE_COPIES * habits, habits)
        return habits * memory_bound_seconds(gpu_peaks(self.target, peaks), traffic)

    def _column_reads(self, sizes: PermuteSizes) -> Floats:
        """Return how often a warp reads shared memory for 32 elements of each tile. Where words do not go to vectors as
        a whole, it is so many times as there are words of one bank."""
        total = np.zeros(len(sizes.tile_in))
        for masked in self.problem.transposed_loads:
            chunk = np.maximum(sizes.copy_bytes, self._element_bytes) // masked.load.dtype.bytes
            copied = tile_rows(self.problem, masked, sizes.tile_in, chunk).steps[0][1]
            pitch = np.where(sizes.copy_bytes > 0, copied, sizes.tile_in * sizes.pack + sizes.padding)
            conflicts = bank_conflicts(self.problem, masked, pitch, sizes.pack)
            total += np.where((sizes.copy_bytes > 0) | (sizes.alignment > 0), conflicts, 1 / sizes.pack)
        return total

    def derive(self, columns: Columns) -> Derived:
        sizes = self.sizes(columns)
        return {
            **gpu_columns(self.target, sizes, wanted=sizes.thread_bytes),
            "tile_in_bytes": sizes.tile_in * self._element_bytes,
            "tile_out_bytes": sizes.tile_out * self._output_bytes,
            "thread_bytes": sizes.thread_bytes,
        }

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        options = PermuteOptions(
            swizzled=setting["layout"] == "swizzle",
            along_input=setting["raster_order"] == "along_input",
            evict_first=setting["evict_first"] == 1,
            prefetch=self.limits.clusters,  # from Hopper on, where clusters are, a prefetch pays
        )
        return permute_kernel(self.problem, self.sizes_of(setting), options)


def _widest_vector(most: int, axes: Sequence[Axis]) -> int:
    """Return the widest vector, a power of two up to ``most``, that the innermost of ``axes`` is made of."""
    return next(v for v in (16, 8, 4, 2, 1) if v <= most and axes[-1].extent % v == 0)


def _tile_extents(bytes_of_tiles: Sequence[int], size: int, extent: int) -> tuple[int, ...]:
    """Return the extents of tiles of ``bytes_of_tiles`` along an axis of ``extent`` elements of ``size`` bytes. Where
    the axis is shorter than all of them, the next power of two, at least 4."""
    found = tuple(n for n in (b // size for b in bytes_of_tiles) if n < 2 * extent)
    return found or (max(4, 1 << (extent - 1).bit_length()),)


def _union(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """Return the values of both, ascending."""
    return tuple(sorted({*a, *b}))


CUDA_PERMUTE = TileSketch("cuda_permute", 3, QUANTITIES, planned(permute_of, PermutePlan))
