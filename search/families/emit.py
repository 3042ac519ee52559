"""Writes the dispatcher of a family as C and as Python: functions of the extents that return the schedule's place."""

from collections.abc import Sequence

from ...core.errors import InvalidParameter
from .family import Family
from .tree import Leaf, Tree

C_TYPE = "int64_t"


def dispatcher_in_c(family: Family, name: str) -> str:
    """C99 without any library. The function returns -1 for a shape that is out of range."""
    names = _names(family, name)
    arguments = ", ".join(f"{C_TYPE} {n}" for n in names)
    outside = " || ".join(
        f"{n} < {d.low} || {n} > {d.high}" + (f" || ({n} - {d.low}) % {d.step}" if d.step > 1 else "")
        for n, d in zip(names, family.dimensions, strict=True)
    )
    lines = ["#include <stdint.h>", ""]
    if _asks_nearest(family.tree):
        lines += _nearest_in_c(family, name, names, arguments)
    lines += [f"int {name}({arguments}) {{", f"    if ({outside}) return -1;"]
    lines += _branches(family.tree, names, 1, "if ({}) {{", "}} else {{", "}", "return {};", f"{name}_nearest")
    return "\n".join([*lines, "}", ""])


def dispatcher_in_python(family: Family, name: str) -> str:
    """Python without any library. The function raises ValueError for a shape that is out of range."""
    names = _names(family, name)
    lines = []
    if _asks_nearest(family.tree):
        known = ", ".join(f"({shape!r}, {place})" for shape, place in family.measured)
        ratio = " * ".join(f"max({n} / known[0][{i}], known[0][{i}] / {n})" for i, n in enumerate(names))
        lines += [f"_MEASURED = ({known},)", "", "", f"def {name}_nearest({', '.join(names)}):"]
        lines += [f"    return min(_MEASURED, key=lambda known: {ratio})[1]", "", ""]
    lines.append(f"def {name}({', '.join(names)}):")
    for n, d in zip(names, family.dimensions, strict=True):
        lines.append(f"    if {n} not in range({d.low}, {d.high + 1}, {d.step}):")
        lines.append(f'        raise ValueError(f"{n} is {{{n}}}; allowed: {d.low} to {d.high} by {d.step}")')
    lines += _branches(family.tree, names, 1, "if {}:", "else:", None, "return {}", f"{name}_nearest")
    return "\n".join([*lines, ""])


def _branches(
    tree: Tree, names: Sequence[str], depth: int, if_: str, else_: str, end: str | None, leaf: str, ask: str
) -> list[str]:
    indent = "    " * depth
    if isinstance(tree, Leaf):
        chosen = f"{ask}({', '.join(names)})" if tree.schedule is None else str(tree.schedule)
        return [indent + leaf.format(chosen)]
    condition = f"{names[tree.dimension]} <= {tree.at_most}"
    below = _branches(tree.below, names, depth + 1, if_, else_, end, leaf, ask)
    above = _branches(tree.above, names, depth + 1, if_, else_, end, leaf, ask)
    closing = [] if end is None else [indent + end]
    return [indent + if_.format(condition), *below, indent + else_.format(), *above, *closing]


def _nearest_in_c(family: Family, name: str, names: Sequence[str], arguments: str) -> list[str]:
    rows = ", ".join("{" + ", ".join(map(str, (*shape, place))) + "}" for shape, place in family.measured)
    width = len(names) + 1
    terms = [
        f"({n} > k[{i}] ? (double){n} / (double)k[{i}] : (double)k[{i}] / (double){n})" for i, n in enumerate(names)
    ]
    return [
        f"static int {name}_nearest({arguments}) {{",
        f"    static const {C_TYPE} known[{len(family.measured)}][{width}] = {{{rows}}};",
        "    double least = 0;",
        "    int found = 0, i;",
        f"    for (i = 0; i < {len(family.measured)}; i++) {{",
        f"        const {C_TYPE} *k = known[i];",
        f"        double ratio = {' * '.join(terms)};",
        "        if (i == 0 || ratio < least) {",
        "            least = ratio;",
        f"            found = (int)k[{width - 1}];",
        "        }",
        "    }",
        "    return found;",
        "}",
        "",
    ]


def _asks_nearest(tree: Tree) -> bool:
    if isinstance(tree, Leaf):
        return tree.schedule is None
    return _asks_nearest(tree.below) or _asks_nearest(tree.above)


def _names(family: Family, name: str) -> list[str]:
    """Return the names of the arguments. Raises InvalidParameter where one is no identifier."""
    names = [dimension.name for dimension in family.dimensions]
    for one in (name, *names):
        if not one.isascii() or not one.isidentifier():
            raise InvalidParameter(f"{one[:80]!r} is no name of a function or argument", field="name")
    return names
