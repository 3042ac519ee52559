"""The interpreter of kernels for processors: every node becomes a closure on NumPy values.

``ir.interpret.interpret`` is the way in: it takes a kernel and its inputs and gives its outputs, or raises KernelFault.
``context`` is what is known while nodes are turned into closures, ``memory`` the contents of buffers with what was
written and by which iteration. ``expressions``, ``functions`` and ``access`` compute values, ``cpu`` runs the
operations of processors. Launches are run by ``ir.simt``, which shares ``memory`` and ``functions``.
"""
