"""The text form of graphs and programs, for people."""

from .graph import Graph, Node, Value
from .operators import OPERATORS
from .partition import ForeignCall, JoinCall, KernelCall
from .program import Program


def graph_text(graph: Graph) -> str:
    """``graph`` as lines, ending in a line break.

    x: float32[4, 8]
    w: float32[5, 8]    # constant
    matmul = matmul(x, w)    # float32[4, 5]
    return matmul
    """
    lines = [f"{v.name}: {v.type}" for v in graph.inputs]
    lines += [f"{v.name}: {v.type}    # constant" for v in graph.constants]
    lines += [_node_text(node) for node in graph.nodes]
    lines += [f"{target} <- {value}" for target, value in graph.updates]
    return "\n".join([*lines, f"return {', '.join(graph.outputs)}".rstrip()]) + "\n"


def program_text(program: Program) -> str:
    """Return the calls of ``program`` as lines: what each computes and what it reads, and the memory between them."""
    lines = [f"prepared {name}" for name in program.recipe.outputs]
    for call in (*program.prepared, *program.calls):
        reads = ", ".join(call.reads)
        if isinstance(call, KernelCall):
            ops = " ".join(program.graph.producers[n].op for n in call.nodes)
            lines.append(f"kernel {', '.join(call.writes)} = {ops} of {reads}")
        elif isinstance(call, ForeignCall):
            lines.append(f"foreign {', '.join(call.writes)} = {call.node.attributes['target']} of {reads}")
        elif isinstance(call, JoinCall):
            lines.append(f"parts of {call.value} = {reads}")
        else:
            lines.append(f"view {call.value} = {call.of}" + (f" from {call.offset}" if call.offset else ""))
    lines.append(f"arena: {program.arena.bytes} bytes, prepared: {program.kept_arena.bytes} bytes")
    return "\n".join(lines) + "\n"


def _node_text(node: Node) -> str:
    given = [*node.operands]
    if node.is_foreign:
        op = str(node.attributes["target"])
    else:
        op = node.op
        defaults = {p.name: p.default for p in OPERATORS[op].attributes}
        given += [f"{n}={_attribute(value)}" for n, value in node.attributes.items() if value != defaults[n]]
    results = ", ".join(v.name for v in node.results)
    types = ", ".join(_type(v) for v in node.results)
    return f"{results} = {op}({', '.join(given)})    # {types}"


def _type(value: Value) -> str:
    return "other" if value.type is None else str(value.type)


def _attribute(value: object) -> str:
    return str(list(value)) if isinstance(value, list | tuple) else str(value)
