"""Nodes of expressions as keys of tables."""

import pickle

from tilewright.core.dtypes import float32
from tilewright.ir.buffer import Buffer
from tilewright.ir.expr import Load, Var, minimum


def test_equal_nodes_are_one_key() -> None:
    first, second = (Load(Buffer("A", (8,), float32), (minimum(Var("i") * 2 + 1, Var("j")),)) for _ in range(2))
    assert first is not second and {first: "found"}[second] == "found"
    assert hash(first) == hash(first) == hash(second)


def test_the_hash_of_a_node_stays_in_its_process() -> None:
    """Another process hashes text with another seed."""
    node = Var("i") + 1
    hash(node)
    copied = pickle.loads(pickle.dumps(node))
    assert copied == node and not hasattr(copied, "_hash")
