"""``tilewright best`` looks the best known schedule up."""

import re
from typing import Annotated

import typer

from ..core.errors import InvalidParameter
from .context import CommandContext
from .expression import read_task
from .options import WorkloadFile
from .tables import best_answer


def best(
    context: typer.Context,
    subject: Annotated[str | None, typer.Argument(help="A workload key, or an operator.")] = None,
    parameters: Annotated[list[str] | None, typer.Argument(help="The operator's parameters, NAME=VALUE.")] = None,
    workload: WorkloadFile = None,
    device: Annotated[str | None, typer.Option(help="The key of another device than this machine's.")] = None,
    target: Annotated[
        str | None, typer.Option(help="Which device stands for this machine: llvm, cuda, cuda:1.")
    ] = None,
    profile: Annotated[str | None, typer.Option(help="Another measuring profile, like cold-v1.")] = None,
    relax: Annotated[
        list[str] | None, typer.Option(help="What may give way where nothing fits: profile, toolchain, device, shape.")
    ] = None,
) -> None:
    """Show the best schedule known for an expression, and which identity parts were relaxed to find it."""
    given: CommandContext = context.obj
    with given.client() as client:
        if subject is not None and re.fullmatch(r"[0-9a-f]{64}", subject):
            found = client.best(subject, device_key=device, profile=profile, target=target, relax=relax or ())
        elif subject is not None and re.fullmatch(r"(?=.*\d)[0-9a-fA-F]{8,}", subject):
            raise InvalidParameter(
                f"{subject!r} is no workload key; allowed: its 64 hexadecimal digits, or an operator with parameters",
                field="subject",
            )
        else:
            task = read_task(subject, parameters or [], workload)
            found = client.lookup(task, device_key=device, profile=profile, target=target, relax=relax or ())
    given.show(found, best_answer(found))
