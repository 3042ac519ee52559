"""The text form of workloads: what ``explain`` and a job's page show."""

from ..core.precision import IEEE
from ..ir.buffer import Buffer
from ..ir.expr import Expr, Var
from ..ir.rewrite import map_expr
from ..ir.text import expr_text
from .packed_floats import e2m1_of, e8m0_of
from .triton import TritonWorkload, triton_text
from .workload import Stage, Workload


def workload_text(workload: Workload) -> str:
    """``workload`` as lines, ending in a line break: inputs, then stages, outputs marked; the
    precision, where it is not ``ieee``.

    A: float32[4, 8]
    B: float32[8, 5]
    C[i, j] = sum over k < 8 of A[i, k] * B[k, j]    # output float32[4, 5]

    An input whose first dimension is dynamic says so: ``A: float32[4, 8]    # dynamic, measured at 2``. Another
    dimension is numbered from 0, and an extent that has a name is named: ``# dynamic k_extent in dimension 1, measured
    at 2``.
    """
    if isinstance(workload, TritonWorkload):
        return triton_text(workload.triton)
    stages = [(_definition(s), s) for s in workload.stages]
    lines = [_declaration(t) + _note(t.name, workload) for t in workload.inputs]
    for definition, stage in stages:
        role = "output " if stage.name in workload.outputs else ""
        lines.append(f"{definition}    # {role}{_type(stage.tensor)}")
    if workload.precision != IEEE:
        lines.append(f"precision: {workload.precision}")
    return "\n".join(lines) + "\n"


def _definition(stage: Stage) -> str:
    over = ", ".join(f"{a.name} < {a.extent}" for a in stage.reduce_axes)
    reducer = "" if stage.reducer is None else f"{stage.reducer} over {over} of "
    return f"{stage.name}[{', '.join(a.name for a in stage.axes)}] = {reducer}{expr_text(map_expr(stage.body, _named))}"


def _named(e: Expr) -> Expr:
    """Return the call of a function of ``packed_floats``, as a name, in the place of the expression that it gives."""
    unpacked, exponent = e2m1_of(e), e8m0_of(e)
    if unpacked is not None:
        return Var(f"e2m1({', '.join(map(expr_text, unpacked))})")
    return e if exponent is None else Var(f"e8m0({expr_text(exponent)})")


def _note(name: str, workload: Workload) -> str:
    """Return what is said of an input behind its declaration."""
    skew = dict(workload.skews).get(name)
    said = ["constant"] * (name in workload.constants) + ([] if skew is None else [f"skew {skew!r}"])
    for d in workload.dynamic:
        for at in sorted(at for given, at in d.places if given == name):
            named, where = f" {d.name}" if d.name else "", f" in dimension {at}" if at else ""
            said.append(f"dynamic{named}{where}, measured at {d.representative}")
    return f"    # {', '.join(said)}" if said else ""


def _declaration(tensor: Buffer) -> str:
    return f"{tensor.name}: {_type(tensor)}"


def _type(tensor: Buffer) -> str:
    return f"{tensor.dtype}[{', '.join(map(str, tensor.shape))}]"
