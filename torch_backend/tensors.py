"""Torch's tensors as the tensors of a program (``runtime.tensor_library``)."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch

from ..core.dtypes import DType, bfloat16
from ..core.errors import InvalidGraph
from ..core.keys import JSON
from ..graph.graph import Node
from ..graph.operators.operator import Array, TensorType
from ..importers.fx import type_of
from ..runtime.cuda.device import CudaDevice
from ..runtime.tensor_library import Capture
from .tensor_guard import TensorGuard


def torch_dtype(dtype: DType) -> torch.dtype:
    found = getattr(torch, dtype.name)
    assert isinstance(found, torch.dtype)
    return found


class TorchTensors:
    """Tensors of one device of torch. ``gpu`` is the same device where it is a GPU."""

    def __init__(self, device: torch.device, gpu: CudaDevice | None = None) -> None:
        self.device = device
        self._gpu = gpu
        self._context = nullcontext() if gpu is None else gpu.context

    def allocator(self, kind: TensorType) -> Callable[[], Any]:
        dtype = torch_dtype(kind.dtype)
        if self._gpu is not None and torch.cuda.device_count() > 1:
            return partial(torch.empty, kind.shape, dtype=dtype, device=self.device)
        # What inductor's code calls: it takes half the time, and knows no device but the current one.
        guards = torch._C._dynamo.guards
        make = guards._empty_strided_cpu if self._gpu is None else guards._empty_strided_cuda
        return partial(make, kind.shape, dense_strides(kind.shape), dtype)

    def buffer(self, nbytes: int) -> Any:
        block = torch.empty(nbytes + 64, dtype=torch.uint8, device=self.device)
        return block[-block.data_ptr() % 64 :][:nbytes]

    def view_of(self, buffer: Any, offset: int, kind: TensorType) -> Any:
        part = buffer[offset : offset + kind.elements * kind.dtype.bytes]
        return part.view(torch_dtype(kind.dtype)).view(kind.shape)

    def address(self, tensor: Any) -> int:
        return int(tensor.data_ptr())

    def guard(self, tensors: Sequence[Any], positions: Sequence[int]) -> TensorGuard:
        return TensorGuard(tensors, positions)

    def on_device(self) -> AbstractContextManager[object]:
        return self._context

    def stream(self) -> int:
        if self._gpu is None:
            return 0
        return int(torch._C._cuda_getCurrentRawStream(self._gpu.ordinal))  # a Stream object takes microseconds

    def is_captured(self) -> bool:
        return self._gpu is not None and bool(torch._C._cuda_isCurrentStreamCapturing())

    def capture(self) -> Capture | None:
        return None if self._gpu is None else self._gpu.capture

    def wait(self) -> None:
        if self._gpu is not None:
            torch.cuda.current_stream(self.device).synchronize()

    def type_of(self, tensor: Any) -> TensorType | None:
        return type_of(tensor)

    def is_dense(self, tensor: Any) -> bool:
        return bool(tensor.is_contiguous())

    def dense_copy(self, tensor: Any) -> Any:
        return tensor.clone(memory_format=torch.contiguous_format)

    def reshaped(self, tensor: Any, shape: tuple[int, ...], offset: int = 0) -> Any:
        same = tensor.numel() == math.prod(shape)
        return tensor.view(shape) if same else tensor.view(-1)[offset : offset + math.prod(shape)].view(shape)

    def to_numpy(self, tensor: Any) -> Array:
        tensor = tensor.detach().contiguous().cpu()
        if tensor.dtype is torch.bfloat16:  # torch gives no array of this dtype: the bytes are the same
            return np.asarray(tensor.view(torch.int16).numpy()).view(bfloat16.numpy)
        return np.asarray(tensor.numpy())

    def from_numpy(self, array: Array, dtype: DType) -> Any:
        if dtype == bfloat16 and array.dtype == bfloat16.numpy:
            return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
        return torch.from_numpy(array.copy()).to(torch_dtype(dtype))

    def overwrite(self, targets: Sequence[Any], sources: Sequence[Any]) -> None:
        for dtype in {t.dtype for t in targets}:  # tensors of one dtype are copied by one kernel
            pairs = [pair for pair in zip(targets, sources, strict=True) if pair[0].dtype == dtype]
            torch._foreach_copy_(*map(list, zip(*pairs, strict=True)))

    def foreign(self, node: Node) -> Callable[[Sequence[Any]], Sequence[Any]]:
        function = operator_named(str(node.attributes["target"]))
        arguments, keywords = node.attributes["arguments"], node.attributes["keywords"]
        assert isinstance(arguments, list) and isinstance(keywords, Mapping)

        def call(operands: Sequence[Any]) -> Sequence[Any]:
            given = [_decoded(a, operands) for a in arguments]
            result = function(*given, **{k: _decoded(a, operands) for k, a in keywords.items()})
            return result if isinstance(result, tuple | list) else (result,)

        return call


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in elements, of a dense tensor as torch makes it: an extent of 0 counts as 1."""
    strides = [1]
    for extent in reversed(shape[1:]):
        strides.append(strides[-1] * max(extent, 1))
    return tuple(reversed(strides[: len(shape)]))


def strided_copy(tensor: Any, strides: Sequence[int]) -> Any:
    """Return a copy with these strides. Some may be 0, and elements that lie in one place must be equal."""
    once = tensor[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in strides)]
    extents = [n for _, n in sorted(zip(strides, once.shape, strict=True))]
    if all(b >= a * n for a, b, n in zip(sorted(strides), sorted(strides)[1:], extents, strict=False)):
        made = torch.empty_strided(once.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(once)
    else:  # windows that overlap: torch copies nothing into such a tensor
        count = 1 + sum((n - 1) * s for n, s in zip(once.shape, strides, strict=True))
        places = torch.arange(count, device=tensor.device)
        made = torch.empty_like(places, dtype=tensor.dtype)
        made = made.put_(places.as_strided(once.shape, strides), once).as_strided(once.shape, strides)
    return made.expand(tensor.shape)


def operator_named(target: str) -> Any:
    """Return the operator of torch with this name, such as ``aten.topk.default``. Raises InvalidGraph where there is
    none."""
    parts = target.split(".")
    found: Any = torch.ops
    try:
        for part in parts:
            found = getattr(found, part)
    except AttributeError:
        found = None
    if len(parts) != 3 or not isinstance(found, torch._ops.OpOverload):
        raise InvalidGraph(f"{target} is no operator of torch", field="target")
    return found


def _decoded(a: JSON, operands: Sequence[Any]) -> Any:
    """Return an argument of a foreign call, from the form in which ``importers.fx`` writes it."""
    if isinstance(a, list):
        return [_decoded(v, operands) for v in a]
    if not isinstance(a, Mapping):
        return a
    (kind, value), *_ = a.items()
    match kind, value:
        case "operand", int():
            return operands[value]
        case "float", str():
            return float(value)
        case "complex", str():
            return complex(value)
        case "device", str():
            return torch.device(value)
        case (("dtype" | "memory_format" | "layout"), str()):
            return getattr(torch, value)
    raise InvalidGraph(f"an argument {kind} of a foreign call", field="arguments")
