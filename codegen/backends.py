"""Holds the table of backends: kind of target -> backend."""

from ..core.errors import UnsupportedTarget
from ..core.target import Target
from .amdgpu.backend import AmdgpuBackend
from .backend import Backend
from .cuda.backend import CudaBackend
from .llvm.backend import LlvmBackend

BACKENDS: dict[str, Backend] = {"llvm": LlvmBackend(), "cuda": CudaBackend(), "amdgpu": AmdgpuBackend()}


def backend_for(target: Target) -> Backend:
    """Return the backend of ``target.kind``. Raises UnsupportedTarget, which names the kinds that there are."""
    if target.kind not in BACKENDS:
        raise UnsupportedTarget(
            f"no code can be made for {target.kind!r}; known: {', '.join(BACKENDS)}", field="target"
        )
    return BACKENDS[target.kind]
