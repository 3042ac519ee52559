"""Holds the table of backends: kind of target -> backend."""

from collections.abc import Mapping
from importlib import import_module

from ..core.errors import UnsupportedTarget
from ..core.lazy_table import LazyTable
from ..core.target import Target
from .backend import Backend

_CLASSES = {
    "llvm": "llvm.backend:LlvmBackend",
    "cuda": "cuda.backend:CudaBackend",
    "amdgpu": "amdgpu.backend:AmdgpuBackend",
}
"""Kind -> ``module:class`` in this folder. Named rather than imported: a process loads the back ends that it uses."""


def _load(kind: str) -> Backend:
    module, name = _CLASSES[kind].split(":")
    backend: Backend = getattr(import_module(f".{module}", __package__), name)()
    return backend


BACKENDS: Mapping[str, Backend] = LazyTable(_CLASSES, _load)


def backend_for(target: Target) -> Backend:
    """Return the backend of ``target.kind``. Raises UnsupportedTarget, which names the kinds that there are."""
    if target.kind not in BACKENDS:
        raise UnsupportedTarget(
            f"no code can be made for {target.kind!r}; known: {', '.join(BACKENDS)}", field="target"
        )
    return BACKENDS[target.kind]
