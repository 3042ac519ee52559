"""Which device a program runs on: the processor, or one NVIDIA GPU."""

import functools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from ..codegen.backends import backend_for
from ..core.target import Toolchain
from ..runtime.cpu import CpuDevice
from ..runtime.cuda.device import CudaDevice
from .tensors import TorchTensors


def device_of(tensors: Iterable[Any]) -> torch.device | None:
    """Return the device that kernels for a graph of these tensors run on. It is the GPU where there is one: what lies
    on the processor beside it is left to torch. None for several GPUs, and for devices of another kind."""
    found = {t.device for t in tensors}
    others = {d for d in found if d.type != "cpu"}
    if not others:
        return torch.device("cpu")
    return others.pop() if len(others) == 1 and all(d.type == "cuda" for d in others) else None


def opened(device: torch.device) -> CpuDevice | CudaDevice:
    """Return the device as kernels see it. The processor has as many threads as torch uses. Raises UnsupportedTarget
    for a GPU that nothing can be compiled for, and where the extra ``cuda`` is missing."""
    if device.type == "cuda":
        return _gpu(device.index or 0)
    target = CpuDevice().target
    return CpuDevice(replace(target, threads=min(target.threads, torch.get_num_threads())))


@functools.cache
def _gpu(ordinal: int) -> CudaDevice:
    return CudaDevice(ordinal=ordinal)


def tensors_of(device: torch.device) -> TorchTensors:
    """Torch's tensors on ``device``."""
    found = opened(device)
    return TorchTensors(device, found if isinstance(found, CudaDevice) else None)


def toolchain_of(device: CpuDevice | CudaDevice) -> Toolchain:
    """Return what kernels for a device are built with."""
    return backend_for(device.target).toolchain(device.target)
