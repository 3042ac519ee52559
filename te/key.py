"""The identity of a workload: its structure, whatever the names of its tensors and axes are."""

from ..core.keys import content_key
from .json import workload_to_json
from .rename import renamed
from .triton import TritonWorkload
from .triton_json import triton_key
from .workload import Workload


def workload_key(workload: Workload) -> str:
    """64 hexadecimal digits: the SHA-256 of the workload's canonical JSON with all names erased.

    Two checked workloads have one key exactly when they differ in names alone. The order of inputs and outputs
    counts, since it is the order of a kernel's parameters. ``triton_key`` says what the key of a Triton kernel forgets.
    """
    if isinstance(workload, TritonWorkload):
        return triton_key(workload.triton)
    tensors = [t.name for t in workload.inputs] + [s.name for s in workload.stages]
    axes = [a.name for s in workload.stages for a in (*s.axes, *s.reduce_axes)]
    names = {n: f"t{i}" for i, n in enumerate(tensors)} | {n: f"a{i}" for i, n in enumerate(axes)}
    names |= {d.name: f"e{i}" for i, d in enumerate(workload.dynamic) if d.name}
    return content_key(workload_to_json(renamed(workload, names)))
