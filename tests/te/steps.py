"""Steps of a decomposition, run by the reference."""

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from tilewright.te.reference import reference
from tilewright.te.workload import Workload


def run_steps(steps: Sequence[Workload], inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """What the last step gives, where each one reads inputs and what others before it gave."""
    tensors = dict(inputs)
    for step in steps:
        found = reference(step, {b.name: tensors[b.name] for b in step.inputs})
        tensors |= {b.name: found[b.name].astype(b.dtype.numpy) for b in step.output_buffers}
    return {name: tensors[name] for name in steps[-1].outputs}
