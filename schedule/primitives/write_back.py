"""write_back: a tensor is computed into a buffer of its own and copied out at the end."""

from dataclasses import replace

from ...core.errors import IllegalSchedule
from ...ir.buffer import Buffer, MemoryScope
from ...ir.expr import Load, Var
from ...ir.rewrite import fresh_name, replace_buffers
from ...ir.stmt import Kernel, Store, seq
from ...te.workload import Axis
from ..loop_nest.nest import nested
from ..loop_nest.tree import dimension_names, find_producer, names_in, replaced


def write_back(kernel: Kernel, tensor: str, *, name: str | None = None) -> Kernel:
    """Computes ``tensor`` into a new workspace tensor ``<tensor>_acc`` (or ``name``), then copies that.

    The copy is an elementwise consumer to tile, and the new tensor, no output, can be computed at its loops: so an
    output that is a reduction accumulates in registers::

        for i_init, j_init:                    for i_init, j_init:                  # write_back(k, "C")
          C[i_init, j_init] = 0                  C_acc[i_init, j_init] = 0
        for i, j, k:                   ->      for i, j, k:
          C[i, j] = C[i, j] + …                  C_acc[i, j] = C_acc[i, j] + …
                                               for i_out, j_out:
                                                 C[i_out, j_out] = C_acc[i_out, j_out]

    The loops of the copy are called after those that run over the dimensions, with ``_out`` behind (numbered when
    taken). Raises IllegalSchedule for a tensor that the kernel does not compute, or that is not in global memory,
    and when ``name`` is taken.
    """
    producer = find_producer(kernel, tensor, primitive="write_back")
    old = producer.buffer
    if old.scope is not MemoryScope.GLOBAL:
        raise IllegalSchedule(
            f"write_back: tensor is {tensor!r}, in {old.scope} scope; allowed: global", field="tensor"
        )
    taken = names_in(kernel)
    if name is not None and name in taken:
        raise IllegalSchedule(f"write_back: name is {name!r}, which is taken", field="name")
    new = Buffer(name or fresh_name(f"{tensor}_acc", taken), old.shape, old.dtype)
    taken.add(new.name)
    axes = []
    for loop, extent in zip(dimension_names(producer), old.shape, strict=True):
        axes.append(Axis(fresh_name(f"{loop}_out", taken), extent))
        taken.add(axes[-1].name)
    at = tuple(Var(axis.name) for axis in axes)
    copy = nested(axes, Store(old, at, Load(new, at)))
    body = kernel.body
    for position, s in enumerate(producer.statements):
        turned = replace_buffers(s, {tensor: new})
        last = position == len(producer.statements) - 1
        body = replaced(body, s, seq(turned, copy) if last else turned)
    return replace(kernel, body=body, workspace=(*kernel.workspace, new))
