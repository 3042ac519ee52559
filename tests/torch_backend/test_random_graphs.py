"""Random graphs of torch, compiled and compared with eager in float64. Run as a program it checks more of them.

python -m tests.torch_backend.test_random_graphs [COUNT]
"""

import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from tests.random_graphs import arrays_for, graphs  # noqa: E402
from tests.torch_backend.models import check, compiled, latest  # noqa: E402
from tilewright.graph.graph import Graph  # noqa: E402
from tilewright.torch_backend.aten import evaluate  # noqa: E402


def traced(graph: Graph, inputs: list[Any]) -> Any:
    """A module of ATen operators that computes ``graph``."""

    def run(*given: Any) -> list[Any]:
        known = dict(zip((v.name for v in (*graph.inputs, *graph.constants)), given, strict=True))
        for node in graph.nodes:
            known[node.name] = evaluate(node, [known[n] for n in node.operands])
        return [known[name] for name in graph.outputs]

    return make_fx(run)(*inputs)


def strides_that_matter(tensor: Any) -> list[int]:
    """The strides of dimensions of several elements. Torch's own traces differ from what it does for others, such as
    those of the relu of a slice of one element."""
    return [stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True) if n > 1]


def check_one(graph: Graph, turned: bool) -> None:
    inputs = [torch.from_numpy(a) for a in arrays_for(graph).values()]
    if turned:  # dense in the opposite order of dimensions
        order = [tuple(reversed(range(x.dim()))) for x in inputs]
        inputs = [x.permute(o).contiguous().permute(o) for x, o in zip(inputs, order, strict=True)]
    model = traced(graph, inputs)
    run = compiled(model)  # held, because a graph that nobody holds has no state
    check(model, run, *inputs, strides=strides_that_matter)
    if any(n.op == "call_function" for n in model.graph.nodes):  # dynamo makes no graph of nothing
        assert latest().state == "ready" or "nothing in it" in latest().reason


@settings(max_examples=50, deadline=None)
@given(graph=graphs(), turned=st.booleans())
def test_random_graphs(graph: Graph, turned: bool) -> None:
    check_one(graph, turned)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    run = given(graph=graphs(), turned=st.booleans())(check_one)
    settings(max_examples=count, deadline=None)(run)()
    print(f"{count} random graphs are right")


if __name__ == "__main__":
    main()
