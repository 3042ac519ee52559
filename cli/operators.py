"""``tilewright operators`` lists the operator library."""

from typing import Annotated, Any

import typer
from rich.table import Table

from ..core.errors import NotFound
from .context import CommandContext


def operators(
    context: typer.Context, name: Annotated[str | None, typer.Argument(help="Show the parameters of this one.")] = None
) -> None:
    """List the operators that can be tuned by name, or the parameters of one."""
    given: CommandContext = context.obj
    with given.client() as client:
        library = {operator.name: operator for operator in client.operators()}
    if name is not None and name not in library:
        raise NotFound(f"no operator {name!r}; there are: {', '.join(library)}", field="name")
    chosen = library if name is None else {name: library[name]}
    if given.as_json:
        given.print_json([*chosen.values()])
        return
    table = Table(box=None, header_style="dim", pad_edge=False)
    for column in ("operator", "summary") if name is None else ("parameter", "default", "allowed", "meaning"):
        table.add_column(column)
    if name is None:
        for operator in chosen.values():
            table.add_row(operator.name, operator.summary)
    else:
        for parameter, schema in chosen[name].parameters_schema.get("properties", {}).items():
            default = schema.get("default", "required")
            table.add_row(parameter, str(default), _allowed(schema), schema.get("description", ""))
    given.console.print(table)


def _allowed(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    low, high = schema.get("minimum"), schema.get("maximum")
    bounds = "" if low is None and high is None else f" {low}..{high}"
    return f"{schema.get('type', 'any')}{bounds}"
