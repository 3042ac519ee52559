"""Which pointers a Triton kernel writes, read from its source.

A variable *comes from* the parameters that its value was computed of, as far as that may be an address: by arithmetic,
choice and the functions that return pointers. What is loaded comes from none. A parameter is written where the first
operand of a store or of an atomic operation comes from it, or what a helper function writes.
"""

import ast
from collections.abc import Mapping

from ..core.errors import InvalidWorkload

_ADDRESSES = frozenset(
    "make_block_ptr make_tensor_descriptor advance multiple_of max_contiguous max_constancy broadcast broadcast_to "
    "where reshape view expand_dims cast trans permute ravel to".split()
)
"""The functions and methods of Triton whose result may be an address."""
Sources = frozenset[str]


def written_parameters(source: str, name: str) -> frozenset[str]:
    """Return the parameters of function ``name`` whose memory it may write. Raises InvalidWorkload for a text that is
    no Python, or has no such function."""
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise InvalidWorkload(f"the source is no Python: {error}", field="/source") from None
    functions = {s.name: s for s in module.body if isinstance(s, ast.FunctionDef)}
    if name not in functions:
        raise InvalidWorkload(f"the source has no function {name}", field="/name")
    written: dict[str, Sources] = {each: frozenset() for each in functions}
    while True:  # helpers may call each other
        found = {each: _FunctionVisitor(tree, functions, written).written() for each, tree in functions.items()}
        if found == written:
            return found[name]
        written = found


class _FunctionVisitor(ast.NodeVisitor):
    """Walks one function until what its variables come from no longer grows."""

    def __init__(
        self, tree: ast.FunctionDef, functions: Mapping[str, ast.FunctionDef], written: Mapping[str, Sources]
    ) -> None:
        self._tree = tree
        self._functions = functions
        self._written = written
        self._from: dict[str, Sources] = {p.arg: frozenset([p.arg]) for p in tree.args.args}
        self._found: Sources = frozenset()

    def written(self) -> Sources:
        before: object = None
        while before != (before := (dict(self._from), self._found)):
            for statement in self._tree.body:
                self.visit(statement)
        return self._found

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            self._assign(target, node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.generic_visit(node)
        self._assign(node.target, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.generic_visit(node)
        if node.value is not None:
            self._assign(node.target, node.value)

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        name = _called(node)
        if name in self._functions:
            parameters = [p.arg for p in self._functions[name].args.args]
            given = {
                **dict(zip(parameters, node.args, strict=False)),
                **{k.arg: k.value for k in node.keywords if k.arg},
            }
            for parameter in self._written[name] & given.keys():
                self._found |= self._sources(given[parameter])
        elif name == "store" or name.startswith(("atomic_", "store_")):
            on_module = isinstance(node.func, ast.Name) or ast.unparse(node.func.value) in ("tl", "triton.language")  # type: ignore[attr-defined]
            pointer = next((k.value for k in node.keywords if k.arg == "pointer"), None)
            if pointer is None and on_module:
                pointer = node.args[0] if node.args else None
            elif pointer is None and isinstance(node.func, ast.Attribute):
                pointer = node.func.value  # the method of a descriptor
            if pointer is not None:
                self._found |= self._sources(pointer)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            values = value.elts if isinstance(value, ast.Tuple | ast.List) else [value] * len(target.elts)
            for one, its in zip(target.elts, values, strict=False):
                self._assign(one, its)
        elif isinstance(target, ast.Name):
            self._from[target.id] = self._from.get(target.id, frozenset()) | self._sources(value)

    def _sources(self, node: ast.expr) -> Sources:
        match node:
            case ast.Name(id=name):
                return self._from.get(name, frozenset())
            case ast.BinOp(left=left, right=right):
                return self._sources(left) | self._sources(right)
            case ast.IfExp(body=one, orelse=other):
                return self._sources(one) | self._sources(other)
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                return frozenset[str]().union(*(self._sources(e) for e in elements))
            case ast.Subscript(value=value):
                return self._sources(value)
            case ast.Call(func=function, args=arguments, keywords=keywords):
                name = _called(node)
                if name not in _ADDRESSES and name not in self._functions:
                    return frozenset()
                receiver = [function.value] if isinstance(function, ast.Attribute) else []
                parts = [*receiver, *arguments, *(k.value for k in keywords)]
                return frozenset[str]().union(*(self._sources(p) for p in parts))
        return frozenset()


def _called(node: ast.Call) -> str:
    """Return the last part of the name of what is called."""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""
