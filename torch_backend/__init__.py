"""``torch.compile(model, backend="tilewright")``: models of torch on our kernels, with ATen where they must.

A traced graph comes in, and a callable goes out. ``backend`` is what torch calls, ``compiled`` runs one traced graph at
one set of shapes, ``schedules`` finds the schedule of a kernel, ``verification`` compares with eager, ``tensors`` are
torch's tensors for ``runtime.program``, and ``tensor_guard`` notices when weights change.
"""
