"""Im2col loads, and tensors that TMA sees in another shape: what they do, which faults are found, what is emitted."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.ir.im2col_launches import CHANNELS, IMAGE, LINE, PIXELS, WINDOWS, ZERO, loading, multicasting, storing
from tilewright.codegen.backend import CompiledKernel, LaunchConfig, TensorMap
from tilewright.codegen.backends import backend_for
from tilewright.codegen.lowering import build_kernel, finish
from tilewright.core.dtypes import float16
from tilewright.core.errors import CompileError, InvalidKernel, KernelFault
from tilewright.core.streams import stream
from tilewright.core.target import Target, Toolchain
from tilewright.ir.buffer import Buffer, Layout
from tilewright.ir.expr import Var, index
from tilewright.ir.gpu.tma import Im2col
from tilewright.ir.interpret import interpret
from tilewright.ir.stmt import Kernel
from tilewright.ir.text import kernel_text
from tilewright.ir.verify import verify
from tilewright.runtime.cuda.tensor_maps import BYTES, without_small_flag
from tilewright.workers.wire import binary_from_frame, binary_to_frame

H200 = Target("cuda", "sm_90a", (), threads=132, vector_bytes=16)


def seen(x: NDArray[Any], window: Im2col, offsets: tuple[int, ...], first: int) -> NDArray[Any]:
    """The same by NumPy, from the position with the number ``first`` on."""
    images, *extents, channels = x.shape
    found = np.zeros((PIXELS, CHANNELS), x.dtype)
    positions = list(product(range(images), *(range(n) for n in window.positions)))
    for row, (image, *place) in enumerate(positions[first : first + PIXELS]):
        sides = zip(place, window.lower, window.strides, offsets, strict=True)
        pixel = tuple(lower + p * stride + offset for p, lower, stride, offset in sides)
        if all(0 <= p < extent for p, extent in zip(pixel, extents, strict=True)):
            found[row, : min(channels, CHANNELS)] = x[(image, *pixel)][:CHANNELS]
    return found


def corner_of(window: Im2col, first: int) -> tuple[int, ...]:
    """(number of the image, pixel) of the position with the number ``first``."""
    number, *places = np.unravel_index(first, (100, *window.positions))
    sides = zip(places, window.lower, window.strides, strict=True)
    return (int(number), *(lower + int(p) * stride for p, lower, stride in sides))


@pytest.mark.parametrize("name", WINDOWS)
def test_a_box_walks_over_the_positions_of_a_window(name: str) -> None:
    tensor, window, offsets = WINDOWS[name]
    x = stream(1, name).normal(size=tensor.shape).astype(np.float16)
    for first in (0, 3, int(np.prod(window.positions)) * tensor.shape[0] - 5):
        corner = (*map(index, corner_of(window, first)), ZERO)
        kernel = loading(tensor, window, tuple(map(index, offsets)), corner)
        verify(kernel)
        np.testing.assert_array_equal(interpret(finish(kernel, H200), {"X": x})["Y"], seen(x, window, offsets, first))


def image_load(**changed: Any) -> Kernel:
    tensor, window, offsets = WINDOWS["image"]
    parts: dict[str, Any] = {"tensor": tensor, "window": window, "offsets": tuple(map(index, offsets))}
    parts |= {"corner": (ZERO, index(-1), index(-1), ZERO), **changed}
    window = replace(parts["window"], **parts.pop("window_fields", {}))
    return loading(parts["tensor"], window, parts["offsets"], parts["corner"], pixels=parts.get("pixels", PIXELS))


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"corner": (ZERO, index(-2), index(-1), ZERO)}, "begins at pixel .-2, -1. .* no position of the window"),
        ({"corner": (ZERO, index(-1), index(6), ZERO)}, "no position of the window"),
        (
            {"window_fields": {"strides": (1, 2), "positions": (5, 4)}, "corner": (ZERO, ZERO, ZERO, ZERO)},
            "no position",
        ),
        ({"offsets": (Var("l") + 255, ZERO)}, "offset by .255, 0.*no position of the window"),
        ({"corner": (ZERO, index(-1), index(-1), Var("l") + 4)}, "a box of X begins at 4 in a row, no multiple of 16"),
    ],
)
def test_the_interpreter_finds_what_no_rule_sees(changed: dict[str, Any], what: str) -> None:
    with pytest.raises(KernelFault, match=what):
        interpret(image_load(**changed), {"X": np.ones(IMAGE.shape, np.float16)})


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"window_fields": {"lower": (-129, -1)}}, r"corners .-129, .* -128 to 127 are allowed"),
        ({"window_fields": {"positions": (200, 7)}}, "corners .* -128 to 127 are allowed"),
        ({"window_fields": {"strides": (9, 1)}}, "strides of 1 to 8 are allowed"),
        ({"window_fields": {"positions": (0, 7)}}, "strides of 1 to 8 are allowed"),
        ({"window_fields": {"strides": (1,)}}, "as many positions, strides and offsets"),
        ({"offsets": (index(255), ZERO)}, "offset by 255; 0 to 254 are allowed"),
        ({"offsets": (index(-1), ZERO)}, "offset by -1; 0 to 254"),
        ({"offsets": (ZERO,)}, "as many positions, strides and offsets"),
        ({"pixels": 1025}, "up to 1024 pixels"),
        ({"tensor": Buffer("X", (2, 5, 7, 36), float16)}, "no multiples of 16 bytes"),
        ({"corner": (ZERO, index(-1), index(-1), index(4))}, "begins between multiples of 16 bytes of a row"),
        ({"tensor": LINE, "corner": (ZERO, ZERO, ZERO)}, "a window over 2 dimensions of X .3, 9, 72."),
    ],
)
def test_the_verifier_refuses(changed: dict[str, Any], what: str) -> None:
    with pytest.raises(InvalidKernel, match=what):
        verify(image_load(**changed))


@pytest.mark.parametrize(("name", "limit"), [("line", 65534), ("image", 254), ("volume", 30)])
def test_offsets_share_sixteen_bits(name: str, limit: int) -> None:
    tensor, window, offsets = WINDOWS[name]
    corner = (ZERO, *map(index, window.lower), ZERO)
    verify(loading(tensor, window, (index(limit), *map(index, offsets[1:])), corner))
    with pytest.raises(InvalidKernel, match=f"0 to {limit} are allowed"):
        verify(loading(tensor, window, (index(limit + 1), *map(index, offsets[1:])), corner))


def test_the_text_says_how_the_window_moves() -> None:
    text = kernel_text(image_load())
    assert (
        "X[0, -1, -1, 0], (16, 64), full[0], im2col from (-1, -1) (5, 7) positions (1, 1) apart, offsets (2, 0)" in text
    )


@pytest.mark.parametrize("name", WINDOWS)
def test_they_become_im2col_instructions(name: str) -> None:
    tensor, window, offsets = WINDOWS[name]
    corner, rank = (ZERO, *map(index, window.lower), ZERO), len(tensor.shape)
    kernel = loading(tensor, window, tuple(map(index, offsets)), corner, prefetches=True)
    source = backend_for(H200).emit(finish(kernel, H200), H200)
    assert source.launches[0].tensor_maps == (TensorMap(0, (PIXELS, CHANNELS), True, 256, None, window),)
    numbers = ", ".join(map(str, (0, *reversed(window.lower), 0, *reversed(offsets))))
    assert f"tma_load_im2col_{rank}d<false>(" in source.text and f", {numbers});" in source.text
    binary = build_kernel(kernel, H200)
    assert all(r.spill_bytes == 0 for r in binary.resources.values())
    sass = backend_for(H200).assembly(source, H200)
    assert f"UTMALDG.{rank}D.IM2COL" in sass and f"UTMAPF.L2.{rank}D.IM2COL" in sass
    with pytest.raises(CompileError, match="sm_89 has no such instruction"):
        build_kernel(kernel, replace(H200, arch="sm_89"))


def test_a_cluster_shares_its_pixels() -> None:
    kernel = multicasting()
    verify(kernel)
    _, window, offsets = WINDOWS["image"]
    x = stream(2, "shared pixels").normal(size=IMAGE.shape).astype(np.float16)
    got = interpret(finish(kernel, H200), {"X": x})["Y"]
    wanted = seen(x, window, offsets, 0)
    np.testing.assert_array_equal(got, np.concatenate([wanted, wanted]))
    source = backend_for(H200).emit(finish(kernel, H200), H200)
    assert "tma_load_multicast_im2col_4d<false>(" in source.text
    assert "UTMALDG.4D.IM2COL.MULTICAST" in backend_for(H200).assembly(source, H200)


def test_tma_may_see_a_tensor_in_another_shape() -> None:
    kernel = storing(Buffer("Y", (8, 8), float16))
    verify(kernel)
    x = np.arange(64, dtype=np.float16).reshape(8, 8)
    np.testing.assert_array_equal(interpret(finish(kernel, H200), {"X": x})["Y"], x.reshape(2, 4, 8))
    source = backend_for(H200).emit(finish(kernel, H200), H200)
    assert source.launches[0].tensor_maps == (TensorMap(1, (8, 8), False, 128, (8, 8)),)
    plain = backend_for(H200).emit(finish(storing(Buffer("Y", (2, 4, 8), float16)), H200), H200)
    assert plain.launches[0].tensor_maps == (TensorMap(1, (2, 4, 8), False, 128),)
    for wrong in (Buffer("Y", (9, 8), float16), Buffer("Y", (8, 16), float16)):
        with pytest.raises(InvalidKernel, match="which has other elements than"):
            verify(storing(wrong))
    overlapping = Buffer("Y", (3, 8), float16, layout=Layout((8, 1)))
    verify(storing(overlapping))
    with pytest.raises(InvalidKernel, match="which has other elements than"):
        verify(storing(Buffer("Y", (4, 8), float16, layout=Layout((24, 1)))))


def test_rows_may_overlap() -> None:
    kernel = storing(Buffer("Y", (2, 8), float16, layout=Layout((8, 1))))
    source = backend_for(H200).emit(finish(kernel, H200), H200)
    assert source.launches[0].tensor_maps == (TensorMap(1, (2, 8), False, 128, (2, 8), None, (8, 1)),)


def test_tensor_maps_cross_to_other_processes() -> None:
    _, window, _ = WINDOWS["image"]
    maps = (TensorMap(0, (64, 64), True, 256, (3, 4), window, (8, 1)), TensorMap(1, (8, 8), False))
    launches = (LaunchConfig("f", (1, 1, 1), 32, tensor_maps=maps),)
    binary = CompiledKernel("cubin", b"code", "f", (), Toolchain({}), launches)
    assert binary_from_frame(binary_to_frame(binary, {})).launches == launches


def test_the_flag_that_drivers_set_for_small_tensors_goes() -> None:
    words = np.arange(16, dtype="<u8") | np.uint64(0xFF << 16)
    cleared = np.frombuffer(without_small_flag(words.tobytes()), "<u8")
    assert cleared.nbytes == BYTES and cleared[1] == words[1] & ~np.uint64(1 << 21)
    assert (np.delete(cleared, 1) == np.delete(words, 1)).all()
