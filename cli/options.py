"""Arguments and options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

Operator = Annotated[str | None, typer.Argument(help="An operator (see: tilewright operators).")]
Parameters = Annotated[list[str] | None, typer.Argument(help="Its parameters, NAME=VALUE.")]
WorkloadFile = Annotated[
    Path | None, typer.Option(help="A file with a workload, as text or as JSON, instead of an operator.")
]
DeviceClass = Annotated[
    str,
    typer.Option(
        help="A class of devices: llvm, cuda, cuda:ARCH or a device's key; on a service of one machine also cuda:1.",
    ),
]
Strategy = Annotated[str, typer.Option(help="How candidates are chosen: model, warm, evolution, random or another.")]
Seed = Annotated[int, typer.Option(help="Same seed and records: same search.")]
Executor = Annotated[str, typer.Option(help="local or ray.")]
Detach = Annotated[bool, typer.Option(help="Print the job and leave (needs a running service).")]
