"""What no rule covers, computed by XLA on this processor."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jaxlib import xla_client

from ...core.errors import InvalidGraph
from ...graph.graph import Node
from ...graph.operators.operator import Array


def xla_function(node: Node) -> Callable[[Sequence[Array]], Sequence[Array]]:
    """Return the function of arrays that computes a foreign node of a StableHLO module. It is compiled at once. Raises
    InvalidGraph for a node of another importer, and for an operation that XLA has not for processors."""
    keywords, arguments = node.attributes["keywords"], node.attributes["arguments"]
    text = keywords.get("module") if isinstance(keywords, dict) else None
    if not isinstance(text, str) or not isinstance(arguments, list):
        raise InvalidGraph(f"{node.attributes['target']} is no operation of StableHLO", field=node.name)
    order = [a["operand"] for a in arguments if isinstance(a, dict)]
    device = jax.devices("cpu")[0]
    try:
        run = device.client.compile_and_load(text, xla_client.DeviceList((device,)), xla_client.CompileOptions())
    except RuntimeError as error:  # what XLA raises
        raise InvalidGraph(f"{node.attributes['target']}: {error}", field=node.name) from error

    def call(operands: Sequence[Any]) -> list[Array]:
        given = [jax.device_put(operands[n], device) for n in order]
        results = run.execute_sharded(given).disassemble_into_single_device_arrays()
        return [np.asarray(part[0]) for part in results]

    return call
