"""``tilewright export`` writes a schedule as files to use without Tilewright."""

from base64 import b64decode
from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import InvalidParameter
from .context import CommandContext
from .explain import read_schedule
from .expression import read_task
from .options import Operator, Parameters, WorkloadFile


def export(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="Where the files go; made if need be.")],
    operator: Operator = None,
    parameters: Parameters = None,
    workload: WorkloadFile = None,
    record: Annotated[int | None, typer.Option(help="The schedule of this record.")] = None,
    schedule: Annotated[
        Path | None, typer.Option(help="A file with a schedule's JSON; default: the best known.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="What for: llvm, cuda, cuda:sm_90a, amdgpu:gfx942; default: this machine.")
    ] = None,
    name: Annotated[str, typer.Option(help="What its functions for other programs are called.")] = "kernel",
    library: Annotated[bool, typer.Option("--library", help="Link a shared library too; needs a C compiler.")] = False,
) -> None:
    """Write source, machine code and a description as files. For a processor these are an object with a C header, and
    a library that C programs and apache-tvm-ffi load; for cuda a kernel.cu that nvcc builds, a cubin, and PTX."""
    given: CommandContext = context.obj
    with given.client() as client:
        if record is not None:
            exported = client.export_record(record, name=name, library=library)
        else:
            task = read_task(operator, parameters or [], workload)
            chosen = None if schedule is None else read_schedule(schedule)
            exported = client.export(task, chosen, target=target, name=name, library=library)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in exported.files.items():
            (folder / Path(file).name).write_bytes(b64decode(content))
    except OSError as error:
        raise InvalidParameter(f"cannot write to {folder}: {error.strerror}", field="folder") from error
    if given.as_json:
        about = exported.model_dump(include={"record_id", "binary_sha256", "same_binary", "has_measured"})
        given.print_json({"folder": str(folder), "files": sorted(exported.files), **about})
        return
    for file in sorted(exported.files):
        given.console.print(str(folder / file), soft_wrap=True)
    if exported.record_id is not None:
        same = {True: "the same binary as", False: "another binary than", None: "maybe another binary than"}
        told = f"built anew; {same[exported.same_binary]} the one that record {exported.record_id} measured"
        if exported.has_measured:
            told += "; that one is here too (measured.json says how it is launched)"
        given.console.print(told, soft_wrap=True)
