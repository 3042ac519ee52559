"""What numerical libraries read from the environment must not decide a comparison: they run at their best, or say so.

``clean`` takes such variables away before any library is loaded, and ``libraries`` says which kernels each one chose.
"""

import os
from collections.abc import MutableMapping

try:
    from threadpoolctl import threadpool_info
except ImportError:  # it comes with scikit-learn, which a machine with a GPU may lack
    threadpool_info = list

PREFIXES = (
    "ATEN_",
    "BLIS_",
    "DNNL_",
    "GOMP_",
    "GOTO_",
    "KMP_",
    "MKL_",
    "NPY_",
    "NVPL_",
    "OMP_",
    "ONEDNN_",
    "OPENBLAS_",
    "OPENVINO_",
    "TORCHINDUCTOR_",
    "VECLIB_",
)
"""Variables that begin so choose instruction sets, kernels, threads or waiting of BLAS, OpenMP, oneDNN and PyTorch."""


def clean(environment: MutableMapping[str, str] = os.environ) -> dict[str, str]:
    """Remove every variable that could slow a library down; what was removed, name -> value.

    It has to run before the libraries are loaded, since they read the environment only then.
    """
    found = {name: value for name, value in environment.items() if name.startswith(PREFIXES)}
    for name in found:
        del environment[name]
    return found


def libraries() -> list[dict[str, object]]:
    """Return the BLAS and OpenMP libraries of this process: each with its version, threads and the kernels that it
    chose."""
    wanted = ("user_api", "internal_api", "version", "num_threads", "architecture", "threading_layer")
    return [{name: entry[name] for name in wanted if entry.get(name) is not None} for entry in threadpool_info()]
