"""``tilewright family`` makes shape families, shows them, chooses schedules by shape, and writes dispatchers."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from ..api.family_requests import DimensionIn, FamilyIn
from ..api.family_responses import FamilyOut
from ..core.errors import InvalidParameter
from .context import CommandContext
from .expression import read_parameters

app = typer.Typer(help="A few schedules for a range of shapes, and a dispatcher.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="The family's name.")]


@app.command("make")
def make(
    context: typer.Context,
    name: Name,
    operator: Annotated[str, typer.Argument(help="A library operator.")],
    dim: Annotated[list[str], typer.Option("--dim", help="NAME=LOW..HIGH, or NAME=LOW..HIGH/STEP.")],
    param: Annotated[list[str] | None, typer.Option("--param", "-p", help="NAME=VALUE that stays the same.")] = None,
    most: Annotated[int, typer.Option(help="How many schedules it may have.")] = 8,
    regret: Annotated[float, typer.Option(help="The mean regret that is good enough.")] = 0.02,
    target: Annotated[str | None, typer.Option(help="Whose records count; default: this processor's.")] = None,
) -> None:
    """Make a family from the records that there are: tune the operator at some shapes before."""
    given: CommandContext = context.obj
    body = FamilyIn(
        name=name,
        operator=operator,
        parameters=read_parameters(param or []),
        dimensions=[_dimension(one) for one in dim],
        most=most,
        target_regret=regret,
        target=target,
    )
    with given.client() as client:
        _show(given, client.make_family(body))


@app.command("list")
def list_families(context: typer.Context) -> None:
    """List families, newest first."""
    given: CommandContext = context.obj
    with given.client() as client:
        found = list(client.families())
    if given.as_json:
        given.print_json(found)
        return
    table = Table(
        "family", "operator", "dimensions", "schedules", "mean regret", box=None, header_style="dim", pad_edge=False
    )
    for family in found:
        mean = "" if family.regret is None else _percent(family.regret.mean)
        table.add_row(family.name, family.operator, _ranges(family), str(len(family.schedules)), mean)
    given.console.print(table)


@app.command("show")
def show(context: typer.Context, name: Name) -> None:
    """Show the schedules of a family and its regret at shapes that were held out."""
    given: CommandContext = context.obj
    with given.client() as client:
        _show(given, client.family(name))


@app.command("choose")
def choose(
    context: typer.Context, name: Name, extent: Annotated[list[str], typer.Argument(help="NAME=EXTENT, for each.")]
) -> None:
    """Choose the schedule of a family for a shape."""
    given: CommandContext = context.obj
    with given.client() as client:
        found = client.choose_of_family(name, ",".join(extent))
    given.show(found, f"{found.place}: {found.schedule.sketch}@{found.schedule.version} {found.schedule.knobs}")


@app.command("code")
def code(
    context: typer.Context,
    name: Name,
    file: Annotated[Path, typer.Argument(help="Where it goes: *.c or *.py.")],
    function: Annotated[str, typer.Option(help="What the function is called.")] = "choose_schedule",
) -> None:
    """Write the dispatcher as a function of the extents, in C or in Python."""
    given: CommandContext = context.obj
    language = {".c": "c", ".py": "python"}.get(file.suffix)
    if language is None:
        raise InvalidParameter(f"{file.name} ends in neither .c nor .py", field="file")
    with given.client() as client:
        file.write_text(client.dispatcher(name, language, function), encoding="utf-8")


def _dimension(text: str) -> DimensionIn:
    name, _, rest = text.partition("=")
    extents, _, step = rest.partition("/")
    low, _, high = extents.partition("..")
    if not all(part.isdigit() for part in (low, high, step or "1")):
        raise InvalidParameter(f"{text[:80]!r} is no range; write NAME=LOW..HIGH or NAME=LOW..HIGH/STEP", field="dim")
    return DimensionIn(name=name, low=int(low), high=int(high), step=int(step or 1))


def _ranges(family: FamilyOut) -> str:
    return ", ".join(f"{d.name} {d.low}..{d.high}" + f"/{d.step}" * (d.step > 1) for d in family.dimensions)


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"


def _show(given: CommandContext, family: FamilyOut) -> None:
    if given.as_json:
        given.print_json(family)
        return
    given.console.print(
        f"{family.name}: {family.operator}, {_ranges(family)}, {len(family.measured)} shapes with times"
    )
    for place, schedule in enumerate(family.schedules):
        given.console.print(f"{place}: {schedule.sketch}@{schedule.version} {schedule.knobs}")
    if family.regret is None:
        given.console.print("regret: too few shapes have times to hold some out")
    else:
        r = family.regret
        figures = f"mean {_percent(r.mean)}, 95th percentile {_percent(r.p95)}, most {_percent(r.most)}"
        given.console.print(f"regret at {r.shapes} shapes that were held out: {figures}")
