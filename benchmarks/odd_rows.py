"""Expressions of odd shapes for the tables of memory and of processors: odd pitches, few long rows, windows, odd
permutations, index arithmetic, norms and sums along other axes than the last one.

Each has an operator of the library with its parameters, or its text form, and the same in torch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from benchmarks.tuned import TunedOperator


@dataclass(frozen=True)
class OddRow(TunedOperator):
    """``peer``: the same in PyTorch. ``reads``: hardly anything is written."""

    peer: Callable[..., object]
    reads: bool = False


def reduction(shape: Sequence[int], axes: Sequence[int], kind: str, dtype: str, peer: Callable[..., object]) -> OddRow:
    return OddRow("reduce", {"shape": [*shape], "axes": [*axes], "kind": kind, "dtype": dtype}, peer, reads=True)


def softmax(rows: int, columns: int, dtype: str) -> OddRow:
    parameters = {"rows": rows, "columns": columns, "dtype": dtype}
    return OddRow("softmax", parameters, lambda x: torch.softmax(x, 1))


def layer_norm(rows: int, columns: int, dtype: str) -> OddRow:
    def peer(x: torch.Tensor, g: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (columns,), g, b, 1e-5)

    return OddRow("layer_norm", {"rows": rows, "columns": columns, "dtype": dtype}, peer)


def permutation(shape: Sequence[int], axes: Sequence[int], dtype: str) -> OddRow:
    parameters = {"shape": [*shape], "axes": [*axes], "dtype": dtype}
    return OddRow("transpose", parameters, lambda x: x.permute(*axes).contiguous())


def window(shape: Sequence[int], kernel: Sequence[int], stride: int, kind: str, layout: str, dtype: str) -> OddRow:
    """``shape``: images, channels, height, width. Windows reach over borders by half of their size, rounded down, where
    they are square; others stay inside."""
    batch, channels, height, width = shape
    padding = kernel[0] // 2 if kernel[0] == kernel[1] else 0
    parameters: dict[str, object] = {"batch": batch, "channels": channels, "height": height, "width": width}
    parameters |= {"kernel_h": kernel[0], "kernel_w": kernel[1], "stride": stride, "padding": padding}
    function = functional.avg_pool2d if kind == "average" else functional.max_pool2d

    def peer(x: torch.Tensor) -> torch.Tensor:
        if layout == "NCHW":
            return function(x, tuple(kernel), stride, padding)
        return function(x.permute(0, 3, 1, 2), tuple(kernel), stride, padding).permute(0, 2, 3, 1)

    return OddRow("pool2d", {**parameters, "kind": kind, "layout": layout, "dtype": dtype}, peer)


def convolution(shape: Sequence[int], kernel: int, groups: int, layout: str, dtype: str) -> OddRow:
    """As many filters as channels, and images as large as they were."""
    batch, channels, height, width = shape
    parameters: dict[str, object] = {"batch": batch, "channels": channels, "height": height, "width": width}
    parameters |= {"filters": channels, "groups": groups, "kernel_h": kernel, "kernel_w": kernel}
    parameters |= {"padding": kernel // 2, "layout": layout, "dtype": dtype}
    each = channels // groups

    def peer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        if layout == "NCHW":
            filters = w.reshape(channels, each, kernel, kernel)
            return functional.conv2d(x.reshape(*shape), filters, padding=kernel // 2, groups=groups)
        filters = w.reshape(kernel, kernel, each, channels).permute(3, 2, 0, 1)
        image = x.reshape(batch, height, width, channels).permute(0, 3, 1, 2)
        return functional.conv2d(image, filters, padding=kernel // 2, groups=groups).permute(0, 2, 3, 1)

    return OddRow("conv2d", parameters, peer)


def kronecker(m: int, n: int, p: int, q: int, dtype: str) -> OddRow:
    """Of m x n and p x q elements."""
    text = f"A: {dtype}[{m}, {n}]\nB: {dtype}[{p}, {q}]\n"
    text += f"C[i < {m * p}, j < {n * q}] = A[i // {p}, j // {q}] * B[i % {p}, j % {q}]"
    return OddRow(None, {"text": text}, torch.kron)


def rolled(rows: int, columns: int, distance: int, dtype: str) -> OddRow:
    text = f"A: {dtype}[{rows}, {columns}]\nC[i, j < {columns}] = A[i, (j + {distance}) % {columns}]"
    return OddRow(None, {"text": text}, lambda x: x.roll(-distance, 1))


def interleaved_columns(rows: int, columns: int, dtype: str) -> OddRow:
    inputs = "\n".join(f"{name}: {dtype}[{rows}, {columns}]" for name in "AB")
    text = f"{inputs}\nC[i, j < {2 * columns}] = select(j % 2 == 0, A[i, j // 2], B[i, j // 2])"
    return OddRow(None, {"text": text}, lambda a, b: torch.stack((a, b), 2).flatten(1))


def pixel_shuffle(batch: int, channels: int, side: int, dtype: str) -> OddRow:
    """Four channels become two by two pixels of one."""
    text = f"A: {dtype}[{batch}, {4 * channels}, {side}, {side}]\n"
    text += f"C[n, c < {channels}, y < {2 * side}, x < {2 * side}] = A[n, c * 4 + y % 2 * 2 + x % 2, y // 2, x // 2]"
    return OddRow(None, {"text": text}, lambda x: functional.pixel_shuffle(x, 2))


def five_points(rows: int, columns: int, dtype: str) -> OddRow:
    """Of each inner point, the sum of its four neighbours less four times itself."""
    text = f"A: {dtype}[{rows + 2}, {columns + 2}]\nC[i < {rows}, j < {columns}] = A[i, j + 1] + A[i + 2, j + 1] "
    text += "+ A[i + 1, j] + A[i + 1, j + 2] - A[i + 1, j + 1] * 4"

    def peer(x: torch.Tensor) -> torch.Tensor:
        return x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:] - x[1:-1, 1:-1] * 4

    return OddRow(None, {"text": text}, peer)


def softmax_in_the_middle(batch: int, rows: int, columns: int, dtype: str) -> OddRow:
    text = f"X: {dtype}[{batch}, {rows}, {columns}]\nM[i, k] = max over j < {rows} of float32(X[i, j, k])\n"
    text += f"S[i, k] = sum over j < {rows} of exp(float32(X[i, j, k]) - M[i, k])\n"
    text += f"Y[i, j, k] = {dtype}(exp(float32(X[i, j, k]) - M[i, k]) / S[i, k])"
    return OddRow(None, {"text": text}, lambda x: torch.softmax(x, 1))


def _moments(element: str, at: str, over: str, count: int) -> str:
    """Return the text of sums and sums of squares of deviations of ``element``, at ``at``."""
    text = f"M[{at}] = sum over {over} of {element}\nV[{at}] = sum over {over} of "
    return text + f"({element} - M[{at}] / {count}) * ({element} - M[{at}] / {count})\n"


def standardised_middle(batch: int, rows: int, columns: int) -> OddRow:
    """A layer norm along the middle axis, without weights."""
    text = f"X: float32[{batch}, {rows}, {columns}]\n" + _moments("X[i, j, k]", "i, k", f"j < {rows}", rows)
    text += f"Y[i, j, k] = (X[i, j, k] - M[i, k] / {rows}) / sqrt(V[i, k] / {rows} + 1e-5)"

    def peer(x: torch.Tensor) -> torch.Tensor:
        return (x - x.mean(1, keepdim=True)) * torch.rsqrt(x.var(1, correction=0, keepdim=True) + 1e-5)

    return OddRow(None, {"text": text}, peer)


def batch_norm_in_training(batch: int, channels: int, pixels: int, dtype: str) -> OddRow:
    """Without weights."""
    count, element = batch * pixels, "float32(X[n, c, p])"
    text = f"X: {dtype}[{batch}, {channels}, {pixels}]\n"
    text += _moments(element, "c", f"n < {batch}, p < {pixels}", count)
    text += f"Y[n, c, p] = {dtype}(({element} - M[c] / {count}) / sqrt(V[c] / {count} + 1e-5))"
    return OddRow(None, {"text": text}, lambda x: functional.batch_norm(x, None, None, None, None, True))


def group_norm(batch: int, channels: int, pixels: int, groups: int, layout: str, dtype: str) -> OddRow:
    def peer(x: torch.Tensor, g: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        first = layout == "NCHW"
        image = x.reshape(batch, channels, pixels) if first else x.reshape(batch, pixels, channels).transpose(1, 2)
        y = functional.group_norm(image, groups, g.flatten(), b.flatten(), 1e-5)
        return y if first else y.transpose(1, 2)

    parameters: dict[str, object] = {"batch": batch, "channels": channels, "pixels": pixels, "groups": groups}
    return OddRow("group_norm", {**parameters, "layout": layout, "dtype": dtype}, peer)


def padded(batch: int, channels: int, side: int, border: int, dtype: str) -> OddRow:
    text, end, whole = f"X: {dtype}[{batch}, {channels}, {side}, {side}]\n", border + side, 2 * border + side
    inside = " and ".join(f"{i} >= {border} and {i} < {end}" for i in "yx")
    text += f"Y[n, c, y < {whole}, x < {whole}] = select({inside}, X[n, c, y - {border}, x - {border}], 0)"
    return OddRow(None, {"text": text}, lambda x: functional.pad(x, (border,) * 4))


def running_sum(shape: tuple[int, ...], axis: int, dtype: str) -> OddRow:
    parameters = {"shape": list(shape), "axis": axis, "kind": "sum", "dtype": dtype}
    return OddRow("scan", parameters, lambda x: torch.cumsum(x, axis))


def segment_sum(terms: int, columns: int, elements: int) -> OddRow:
    """Of rows that belong to elements. The peer adds them in any order."""
    text = f"T: int32[{terms}]\nX: float32[{terms}, {columns}]\n"
    text += f"Y[v < {elements}, d < {columns}] = sum over e < {terms} of select(int64(T[e]) == v, X[e, d], 0.0)"

    def peer(where: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(elements, columns, device=x.device).index_add_(0, where.long(), x)

    return OddRow(None, {"text": text}, peer)


def embedding_gradient(terms: int, columns: int, elements: int) -> OddRow:
    row = segment_sum(terms, columns, elements)

    def peer(where: torch.Tensor, x: torch.Tensor) -> object:
        return torch.ops.aten.embedding_dense_backward(x, where.long(), elements, -1, False)

    return OddRow(None, row.parameters, peer)


def norm_with_rotary(tokens: int, heads: int, depth: int, dtype: str) -> OddRow:
    """The RMS norm of each head, and its rotary embedding, as queries and keys have them."""
    half = depth // 2
    other = f"(c + {half}) % {depth}"
    text = (
        f"X: {dtype}[{tokens}, {heads}, {depth}]\nG: {dtype}[{depth}]\n"
        f"C: float32[{tokens}, {half}]\nN: float32[{tokens}, {half}]\n"
        f"S[t, h] = sum over c < {depth} of float32(X[t, h, c]) * float32(X[t, h, c])\n"
        f"A[t, h, c] = float32(X[t, h, c]) / sqrt(S[t, h] / {depth} + 0.00001) * float32(G[c])\n"
        f"Y[t, h, c] = {dtype}(A[t, h, c] * C[t, c % {half}] + "
        f"select(c < {half}, -A[t, h, {other}], A[t, h, {other}]) * N[t, c % {half}])"
    )

    def peer(x: torch.Tensor, g: torch.Tensor, c: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        a = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-5) * g.float()
        turned = torch.cat((-a[..., half:], a[..., :half]), -1)
        return (a * torch.cat((c, c), -1)[:, None] + turned * torch.cat((n, n), -1)[:, None]).to(x.dtype)

    return OddRow(None, {"text": text}, peer)


def scatter(terms: int, elements: int, term: str, identity: str, peer: Callable[..., object], how: str) -> OddRow:
    """Of single numbers. ``term``: one of I, and of X where it is read. The peer is given the indices as it wants
    them."""
    text = f"I: int64[{terms}]\n" + (f"X: float32[{terms}]\n" if "X" in term else "")
    text += f"Y[v < {elements}] = {how} over i < {terms} of select(I[i] == v, {term}, {identity})"
    return OddRow(None, {"text": text}, peer, reads=True)


def scattered_sum(terms: int, elements: int) -> OddRow:
    def peer(where: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(elements, device=x.device).scatter_add_(0, where, x)

    return scatter(terms, elements, "X[i]", "0.0", peer, "sum")


def segment_mean(terms: int, elements: int) -> OddRow:
    text = f"I: int64[{terms}]\nX: float32[{terms}]\n"
    for name, term in (("S", "X[i]"), ("C", "1.0")):
        text += f"{name}[v < {elements}] = sum over i < {terms} of select(I[i] == v, {term}, 0.0)\n"

    def peer(where: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(elements, device=x.device).scatter_reduce_(0, where, x, "mean", include_self=False)

    return OddRow(None, {"text": text + "M[v] = S[v] / max(C[v], 1.0)"}, peer, reads=True)


def scattered_max(terms: int, elements: int) -> OddRow:
    def peer(where: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.full((elements,), -torch.inf, device=x.device).scatter_reduce_(0, where, x, "amax")

    return scatter(terms, elements, "X[i]", "-inf", peer, "max")


def _counted(where: torch.Tensor, elements: int) -> torch.Tensor:
    """Return how often each number stands in ``where``. On a GPU ``torch.bincount`` asks the device how many there are,
    so that no graph can replay it."""
    if not where.is_cuda:
        return torch.bincount(where, minlength=elements)
    zeros = torch.zeros(elements, dtype=torch.int32, device=where.device)
    return zeros.scatter_add_(0, where, torch.ones_like(where, dtype=torch.int32))


def bincount(terms: int, elements: int) -> OddRow:
    return scatter(terms, elements, "1", "0", lambda where: _counted(where, elements), "sum")


def histogram(terms: int, bins: int) -> OddRow:
    """Of numbers from -1 to 1."""
    text = f"X: float32[{terms}]\n"
    text += f"Y[v < {bins}] = sum over i < {terms} of select(int64(floor((X[i] + 1.0) * {bins / 2})) == v, 1, 0)"

    def peer(x: torch.Tensor) -> torch.Tensor:
        return _counted(((x + 1.0) * (bins / 2)).floor().long(), bins)

    return OddRow(None, {"text": text}, peer, reads=True)


def confusion(terms: int, classes: int) -> OddRow:
    text = f"I: int64[{terms}]\nJ: int64[{terms}]\nY[a < {classes}, b < {classes}] = "
    text += f"sum over i < {terms} of select(I[i] == a and J[i] == b, 1, 0)"

    def peer(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return _counted(one * classes + other, classes * classes).view(classes, classes)

    return OddRow(None, {"text": text}, peer, reads=True)


def filtered(batch: int, length: int, taps: int, dtype: str) -> OddRow:
    """A finite impulse response filter of signals, added up in float32."""
    here, found = "float32({})" if dtype != "float32" else "{}", length - taps + 1
    text = f"X: {dtype}[{batch}, {length}]\nH: {dtype}[{taps}]\nS[b, i < {found}] = sum over k < {taps} of "
    text += f"{here.format('X[b, i + k]')} * {here.format('H[k]')}\nY[b, i] = {dtype}(S[b, i])"
    return OddRow(None, {"text": text}, lambda x, h: functional.conv1d(x[:, None], h[None, None])[:, 0])


def filtered_columns(length: int, columns: int, taps: int) -> OddRow:
    """The same of signals that are columns."""
    text = f"X: float32[{length}, {columns}]\nH: float32[{taps}]\n"
    text += f"Y[i < {length - taps + 1}, c] = sum over k < {taps} of H[k] * X[i + k, c]"
    return OddRow(None, {"text": text}, lambda x, h: functional.conv2d(x[None, None], h[None, None, :, None])[0, 0])


def sliding_max(batch: int, length: int, width: int) -> OddRow:
    text = f"X: float32[{batch}, {length}]\nY[b, i < {length - width + 1}] = max over k < {width} of X[b, i + k]"
    return OddRow(None, {"text": text}, lambda x: functional.max_pool1d(x[:, None], width, 1)[:, 0])


def correlation(length: int, lags: int) -> OddRow:
    """Of two signals, at each lag."""
    text = f"A: float32[{length}]\nB: float32[{length + lags}]\n"
    text += f"Y[lag < {lags}] = sum over t < {length} of A[t] * B[t + lag]"
    return OddRow(None, {"text": text}, lambda a, b: functional.conv1d(b[None, None], a[None, None])[0, 0, :lags])


def difference_of_neighbours(length: int) -> OddRow:
    """The sum of all absolute differences of neighbours."""
    text = f"X: float32[{length}]\nY[] = sum over i < {length - 1} of abs(X[i + 1] - X[i])"
    return OddRow(None, {"text": text}, lambda x: (x[1:] - x[:-1]).abs().sum(), reads=True)


def total_variation(batch: int, channels: int, side: int) -> OddRow:
    text = f"X: float32[{batch}, {channels}, {side}, {side}]\n"
    text += f"Y[] = sum over b < {batch}, c < {channels}, i < {side - 1}, j < {side - 1} of "
    text += "abs(X[b, c, i + 1, j] - X[b, c, i, j]) + abs(X[b, c, i, j + 1] - X[b, c, i, j])"

    def peer(x: torch.Tensor) -> torch.Tensor:
        corner = x[:, :, :-1, :-1]
        return ((x[:, :, 1:, :-1] - corner).abs() + (x[:, :, :-1, 1:] - corner).abs()).sum()

    return OddRow(None, {"text": text}, peer, reads=True)


def traces(batch: int, side: int) -> OddRow:
    """The trace of the product of each pair of matrices."""
    text = "".join(f"{name}: float32[{batch}, {side}, {side}]\n" for name in "AB")
    text += f"Y[b] = sum over i < {side}, j < {side} of A[b, i, j] * B[b, j, i]"
    return OddRow(None, {"text": text}, lambda a, b: (a * b.mT).sum((1, 2)), reads=True)


F16, F32 = "float16", "float32"

GPU_ROWS: Mapping[str, OddRow] = {
    "odd-column_sum-8192x8191-f32": reduction((8192, 8191), (0,), "sum", F32, lambda x: x.sum(0)),
    "odd-row_sum-8191x8193": reduction((8191, 8193), (1,), "sum", F16, lambda x: x.sum(1)),
    "odd-middle_sum-64x1021x1023": reduction((64, 1021, 1023), (1,), "sum", F16, lambda x: x.sum(1)),
    "odd-sum-4x16777217-f32": reduction((4, 16777217), (1,), "sum", F32, lambda x: x.sum(1)),
    "odd-argmax-8x8388607-f32": reduction((8, 8388607), (1,), "argmax", F32, lambda x: x.argmax(1)),
    "odd-sum_all-8192x8192-f32": reduction((8192, 8192), (0, 1), "sum", F32, torch.sum),
    "odd-max_all-8191x8191": reduction((8191, 8191), (0, 1), "max", F16, torch.amax),
    "odd-softmax-16x1048576": softmax(16, 1048576, F16),
    "odd-softmax-8191x4099": softmax(8191, 4099, F16),
    "odd-layer_norm-8192x4097": layer_norm(8192, 4097, F16),
    "odd-transpose-8191x8193": permutation((8191, 8193), (1, 0), F16),
    "odd-transpose-4097x8191-f32": permutation((4097, 8191), (1, 0), F32),
    "odd-permute_3210-33x65x129x257": permutation((33, 65, 129, 257), (3, 2, 1, 0), F16),
    "odd-permute_2301-57x63x91x113": permutation((57, 63, 91, 113), (2, 3, 0, 1), F16),
    "odd-permute_0213-32x513x16x127": permutation((32, 513, 16, 127), (0, 2, 1, 3), F16),
    "odd-mean_1x31-8192x4096-f32": window((1, 1, 8192, 4096), (1, 31), 1, "average", "NCHW", F32),
    "odd-max_pool_7x7-32x64x128x127": window((32, 64, 128, 127), (7, 7), 1, "max", "NCHW", F16),
    "odd-max_pool_3x3_s2-64x112x112x64": window((64, 64, 112, 112), (3, 3), 2, "max", "NHWC", F16),
    "odd-depthwise_5x5-64x56x56x120": convolution((64, 120, 56, 56), 5, 120, "NHWC", F16),
    "odd-kronecker-96x96-64x96-f32": kronecker(96, 96, 64, 96, F32),
    "odd-roll-8191x8191": rolled(8191, 8191, 1000, F16),
    "odd-interleave-4096x4095": interleaved_columns(4096, 4095, F16),
    "odd-pixel_shuffle-32x256x56x56": pixel_shuffle(32, 64, 56, F16),
    "odd-five_points-8192x4096-f32": five_points(8192, 4096, F32),
    "odd-softmax_middle-64x512x1024": softmax_in_the_middle(64, 512, 1024, F16),
    "odd-standardised_middle-64x512x1024-f32": standardised_middle(64, 512, 1024),
    "odd-batch_norm_training-64x256x3136": batch_norm_in_training(64, 256, 3136, F16),
    "odd-group_norm-16x320x4096": group_norm(16, 320, 4096, 32, "NCHW", F16),
    "odd-group_norm-16x4096x320": group_norm(16, 320, 4096, 32, "NHWC", F16),
    "odd-outer_sum-64x512x1024": reduction((64, 512, 1024), (0, 2), "sum", F16, lambda x: x.sum((0, 2))),
    "odd-outer_max-100x300x2001": reduction((100, 300, 2001), (0, 2), "max", F16, lambda x: x.amax((0, 2))),
    "odd-pad-64x3x500x500": padded(64, 3, 500, 6, F16),
    "odd-cumsum-8x4000000-f32": running_sum((8, 4_000_000), 1, F32),
    "odd-cumsum-1x10000000-f32": running_sum((1, 10_000_000), 1, F32),
    "odd-segment_sum-200000x128-20000-f32": segment_sum(200_000, 128, 20_000),
    "odd-embedding_gradient-32768x768-50000-f32": embedding_gradient(32768, 768, 50_000),
    "odd-norm_with_rotary-8192x32x128": norm_with_rotary(8192, 32, 128, F16),
    "odd-scattered_sum-1000000-50000-f32": scattered_sum(1_000_000, 50_000),
    "odd-scattered_sum-1000000-256-f32": scattered_sum(1_000_000, 256),
    "odd-scattered_max-1000000-50000-f32": scattered_max(1_000_000, 50_000),
    "odd-segment_mean-1000000-50000-f32": segment_mean(1_000_000, 50_000),
    "odd-bincount-1000000-50000": bincount(1_000_000, 50_000),
    "odd-histogram-10000000-256-f32": histogram(10_000_000, 256),
    "odd-confusion-1000000-10": confusion(1_000_000, 10),
    "odd-filter_129-32x400000": filtered(32, 400_000, 129, F16),
    "odd-filter_129-32x400000-f32": filtered(32, 400_000, 129, F32),
    "odd-filter_columns_129-10000x1280-f32": filtered_columns(10_000, 1280, 129),
    "odd-sliding_max_129-32x400000-f32": sliding_max(32, 400_000, 129),
    "odd-correlation_1024-100000-f32": correlation(100_000, 1024),
    "odd-differences-16777217-f32": difference_of_neighbours(16_777_217),
    "odd-total_variation-64x3x512x512-f32": total_variation(64, 3, 512),
    "odd-traces-256x512x512-f32": traces(256, 512),
}

CPU_ROWS: Mapping[str, OddRow] = {
    "odd-column_sum-4096x2047": reduction((4096, 2047), (0,), "sum", F32, lambda x: x.sum(0)),
    "odd-sum-4x2097153": reduction((4, 2097153), (1,), "sum", F32, lambda x: x.sum(1)),
    "odd-sum_all-4096x2048": reduction((4096, 2048), (0, 1), "sum", F32, torch.sum),
    "odd-softmax-4x1048576": softmax(4, 1048576, F32),
    "odd-transpose-2047x2049": permutation((2047, 2049), (1, 0), F32),
    "odd-permute_3210-17x33x65x129": permutation((17, 33, 65, 129), (3, 2, 1, 0), F32),
    "odd-mean_1x31-2048x2048": window((1, 1, 2048, 2048), (1, 31), 1, "average", "NCHW", F32),
    "odd-kronecker-32x32-64x48": kronecker(32, 32, 64, 48, F32),
    "odd-roll-2047x2047": rolled(2047, 2047, 1000, F32),
    "odd-five_points-2048x2048": five_points(2048, 2048, F32),
    "odd-conv2d_5x5-28": convolution((1, 96, 28, 28), 5, 1, "NCHW", F32),
    "odd-conv2d_groups_8-28": convolution((1, 128, 28, 28), 3, 8, "NCHW", F32),
    "odd-depthwise_5x5-28": convolution((1, 96, 28, 28), 5, 96, "NCHW", F32),
    "odd-segment_sum-50000x64-5000": segment_sum(50_000, 64, 5000),
    "odd-scattered_sum-1000000-50000": scattered_sum(1_000_000, 50_000),
    "odd-bincount-1000000-50000": bincount(1_000_000, 50_000),
    "odd-histogram-1000000-256": histogram(1_000_000, 256),
}
