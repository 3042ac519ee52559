"""Random inputs for a workload."""

from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.dtypes import DType
from ..core.streams import stream
from ..ir.buffer import Buffer
from ..ir.expr import Load, walk
from ..ir.rewrite import loads_of
from .groups import all_row_groups, draw_sizes
from .index import loaded_index
from .packed_floats import e8m0_of
from .scatter import scattered_to
from .threads import thread_count
from .triton import TritonPointer, TritonWorkload, pointer_buffer
from .workload import Workload

WIDE_INTEGERS = 1000
"""Integers of 32 bits and more are drawn from -1000 to 1000."""

EXPONENTS = (120, 128)
"""Bytes that stand for powers of two (``packed_floats.e8m0``) are drawn from here, to before the second: 2^-7 to 1."""

_BLOCK = 1 << 22


def random_inputs(workload: Workload, seed: int, threads: int | None = None) -> dict[str, NDArray[Any]]:
    """Return the inputs by name, drawn at random.

    Floats are uniform in [-1, 1). Integers of 8 bits are drawn from their whole range and wider ones from -1000 to
    1000. Those that say where another tensor is read, or where a term is added (``te.scatter``), are drawn from the
    places that it has. Those that are the ends of
    groups of rows (``te.groups``) ascend, and groups are as skewed as the workload says. Those that stand for powers of
    two are drawn from ``EXPONENTS``. Bools are true half of the time.
    An input depends on the seed, on its position and on what it is read for alone: not on its name, on other inputs, or
    on the number of ``threads`` that draw large ones. ``threads`` of None means those that this process may run on, at
    most 16.

    Of a Triton kernel there is what all its pointers hold at first (see ``te.triton.TritonPointer``).
    """
    if isinstance(workload, TritonWorkload):
        pointers = enumerate(workload.triton.pointers)
        return {p.name: _of_pointer(p, stream(seed, "inputs", n), threads) for n, p in pointers}
    places, groups, skews = _places(workload), all_row_groups(workload), dict(workload.skews)
    powers = exponents(workload)
    inputs = dict[str, NDArray[Any]]()
    for n, t in enumerate(workload.inputs):
        draw = stream(seed, "inputs", n)
        if t.name in groups:
            sizes = draw_sizes(groups[t.name].rows, t.elements, skews.get(t.name, 0.0), draw)
            inputs[t.name] = np.minimum(sizes.cumsum(), t.dtype.integer_range[1]).astype(t.dtype.numpy)
        elif t.name in powers:
            inputs[t.name] = draw.integers(*EXPONENTS, t.shape, dtype=np.uint8)
        else:
            inputs[t.name] = _drawn(t, draw, threads, places.get(t.name))
    return inputs


def exponents(workload: Workload) -> set[str]:
    """Return the names of the inputs that stand for powers of two."""
    read = {load.buffer.name for s in workload.stages for e in walk(s.body) if (load := e8m0_of(e)) is not None}
    return read & {t.name for t in workload.inputs}


def _places(workload: Workload) -> dict[str, int]:
    """For each input that is an index of another tensor, or says where a term of a scatter belongs: the extent of the
    dimension, the least of several."""
    found = scattered_to(workload.stages)
    for stage in workload.stages:
        for load in loads_of(stage.body):
            for i, extent in zip(load.indices, load.buffer.shape, strict=True):
                loaded = loaded_index(i, extent)
                for inner in () if loaded is None else walk(loaded):
                    if isinstance(inner, Load):
                        found[inner.buffer.name] = min(extent, found.get(inner.buffer.name, extent))
    return found


def _of_pointer(pointer: TritonPointer, draw: np.random.Generator, threads: int | None) -> NDArray[Any]:
    dtype, shape = pointer.dtype, (pointer.elements,)
    if pointer.low is not None and pointer.high is not None:
        return np.asarray(draw.integers(pointer.low, pointer.high, shape, dtype.numpy, endpoint=True))
    if pointer.zero or (dtype.is_integer and dtype.bits > 8):
        return np.zeros(shape, dtype.numpy)
    return _drawn(pointer_buffer(pointer), draw, threads, None)


def _drawn(tensor: Buffer, draw: np.random.Generator, threads: int | None, places: int | None) -> NDArray[Any]:
    dtype = tensor.dtype
    if places is not None and dtype.is_integer:
        top = min(places - 1, dtype.integer_range[1])
        return np.asarray(draw.integers(0, top + 1, tensor.shape)).astype(dtype.numpy)
    if dtype.is_bool:
        return draw.integers(0, 2, tensor.shape, dtype=np.uint8).astype(bool)
    if dtype.is_integer:
        if dtype.bits == 8:
            low, high = (-128, 128) if dtype.kind == "int" else (0, 256)
        else:
            low, high = -WIDE_INTEGERS, WIDE_INTEGERS + 1
        return np.asarray(draw.integers(low, high, tensor.shape)).astype(dtype.numpy)
    result = np.empty(tensor.elements, dtype.numpy)
    starts = range(0, tensor.elements, _BLOCK)  # in blocks: a narrow input never exists in a wide copy
    count = thread_count(threads) if len(starts) >= 2 else 1
    if count == 1:
        for start in starts:
            _fill(result[start : start + _BLOCK], draw)
        return result.reshape(tensor.shape)
    with ThreadPoolExecutor(min(count, len(starts))) as pool:
        drawn = []
        for start in starts:
            drawn.append(pool.submit(_fill, result[start : start + _BLOCK], _ahead(draw, start, dtype)))
        for block in drawn:
            block.result()
    return result.reshape(tensor.shape)


def _fill(block: NDArray[Any], draw: np.random.Generator) -> None:
    wide = np.float64 if block.dtype == np.float64 else np.float32
    values: NDArray[Any] = draw.random(len(block), dtype=wide)
    values *= 2
    values -= 1
    block[:] = values.astype(block.dtype, copy=False)


def _ahead(draw: np.random.Generator, elements: int, dtype: DType) -> np.random.Generator:
    """Return a copy of the fresh ``draw`` that has already drawn ``elements`` numbers, an even count.

    The bit generator makes one step for each float64, and one for two of the float32 that narrower floats are rounded
    from.
    """
    bits = deepcopy(draw.bit_generator)
    assert isinstance(bits, np.random.PCG64)
    return np.random.Generator(bits.advance(elements if dtype.bits == 64 else elements // 2))
