"""``tilewright explain`` shows every layer of one schedule."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from ..api.responses import ExplanationOut, FunctionOut, SectionOut
from ..core.errors import InvalidParameter
from ..core.schedule import Schedule
from .context import CommandContext
from .expression import read_task
from .options import Operator, Parameters, WorkloadFile
from .tables import duration, rate


def explain(
    context: typer.Context,
    operator: Operator = None,
    parameters: Parameters = None,
    workload: WorkloadFile = None,
    record: Annotated[int | None, typer.Option(help="The schedule of this record.")] = None,
    schedule: Annotated[
        Path | None, typer.Option(help="A file with a schedule's JSON; default: the best known.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="What code is made for: llvm, cuda, or what need not be here: cuda:sm_90a, llvm:aarch64+sve, …"
        ),
    ] = None,
    layer: Annotated[str | None, typer.Option(help="Only the layers whose title contains this.")] = None,
    links: Annotated[
        bool, typer.Option("--links", help="Number the lines, and say which lines of the layer above each comes from.")
    ] = False,
) -> None:
    """Show expression, knobs, IR after each pass, source, machine instructions and their count, and the roofline."""
    given: CommandContext = context.obj
    with given.client() as client:
        if record is not None:
            explanation = client.source(record)
        else:
            task = read_task(operator, parameters or [], workload)
            explanation = client.explain(task, None if schedule is None else read_schedule(schedule), target=target)
    if layer is not None:
        explanation = explanation.model_copy(update={"sections": layers_named(explanation, layer)})
    if given.as_json:
        given.print_json(explanation)
        return
    _warn(given, explanation)
    for section in explanation.sections:
        show_layer(given.console, linked(section) if links else section)
    if links:
        _shares(given, explanation)
    if layer is None:
        _summary(given, explanation)
        _warn(given, explanation)  # again, where it is seen


def layers_named(explanation: ExplanationOut, layer: str) -> tuple[SectionOut, ...]:
    """Return the layers whose title contains ``layer``. Raises InvalidParameter, which names all layers, where none
    does."""
    found = tuple(s for s in explanation.sections if layer.lower() in s.title.lower())
    if not found:
        titles = ", ".join(s.title for s in explanation.sections)
        raise InvalidParameter(f"no layer of this schedule has {layer!r} in its title; it has: {titles}", field="layer")
    return found


def show_layer(console: Console, section: SectionOut) -> None:
    """Print one layer, or that it is empty."""
    console.print(Rule(section.title, align="left", style="dim"))
    console.print(Text(section.text if section.text.strip() else "(this layer is empty)"), soft_wrap=True)


def linked(section: SectionOut) -> SectionOut:
    """Return a layer whose lines have their number ahead of them, and what they come from behind it: ``12 < 3-5,9``."""
    lines = section.text.splitlines()
    numbers = [f"{n} < {_ranges(o)}" if o else f"{n}" for n, o in enumerate(section.origins, start=1)]
    numbers = numbers or [f"{n}" for n in range(1, len(lines) + 1)]
    width = max(map(len, numbers), default=0)
    text = "\n".join(f"{number:<{width}} | {line}" for number, line in zip(numbers, lines, strict=True))
    from_above = f"{section.title}  (< lines of {section.above})" if section.origins else section.title
    return section.model_copy(update={"title": from_above, "text": text})


def _ranges(numbers: Sequence[int]) -> str:
    """Write ascending numbers, neighbours as a range: ``3-5,9``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)


def _shares(given: CommandContext, explanation: ExplanationOut) -> None:
    given.console.print(Rule("links", align="left", style="dim"))
    for section in explanation.sections:
        if section.linked is not None:
            given.console.print(f"{100 * section.linked:5.1f} %  of {section.title} from {section.above}")


def _warn(given: CommandContext, explanation: ExplanationOut) -> None:
    for warning in explanation.warnings:
        given.console.print(Text(f"WARNING: {warning}", style="bold red"), soft_wrap=True)


def _summary(given: CommandContext, explanation: ExplanationOut) -> None:
    given.console.print(Rule("instructions", align="left", style="dim"))
    for name, count in sorted(explanation.instructions.items(), key=lambda pair: -pair[1]):
        if count:
            given.console.print(f"{count:8d}  {name}")
    for function in explanation.functions:
        _launch(given, function)
    given.console.print(Rule("roofline", align="left", style="dim"))
    given.console.print(
        f"{explanation.flops:,} operations, {explanation.minimum_bytes:,} bytes at least, "
        f"{explanation.flops_per_byte:.3g} per byte; loads and stores access {explanation.accessed_bytes:,} bytes"
    )
    if explanation.roofline_seconds is not None:
        given.console.print(f"limit {duration(explanation.roofline_seconds)}, by {explanation.roofline_by}")
    if explanation.seconds is not None:
        reached = (
            ""
            if explanation.fraction_of_roofline is None
            else f", {100 * explanation.fraction_of_roofline:.0f} % of the limit"
        )
        given.console.print(
            f"measured {duration(explanation.seconds)}, {rate(explanation.flops, explanation.seconds)}{reached}"
        )


def _launch(given: CommandContext, function: FunctionOut) -> None:
    given.console.print(Rule(function.name, align="left", style="dim"))
    given.console.print(
        f"{'x'.join(map(str, function.blocks))} blocks of {function.threads} threads, {function.waves:.2f} waves; "
        f"{function.shared_bytes:,} bytes of shared memory a block"
    )
    given.console.print(
        f"{function.registers} registers and {function.stack_bytes} bytes of stack a thread, "
        f"{function.spill_bytes} bytes spilled; {function.resident_blocks} blocks on a multiprocessor, "
        f"occupancy {100 * function.occupancy:.0f} %"
    )


def read_schedule(file: Path) -> Schedule:
    """Return the schedule in a file. Raises InvalidParameter when it holds none."""
    try:
        return Schedule.from_json(json.loads(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise InvalidParameter(f"cannot read {file}: {error.strerror}", field="schedule") from error
    except ValueError as error:
        raise InvalidParameter(f"{file} is no schedule: not JSON ({error})", field="schedule") from error
