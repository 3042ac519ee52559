"""Emits kernel IR as CUDA C++ text.

``kernel.emit`` takes a kernel after all passes and a target, and returns a ``codegen.backend.Source``: one
``extern "C" __global__`` function for each launch, after the device functions of ``codegen.cuda.prelude`` that it uses.

- ``kernel``: the source, signatures, launch configurations; ``warp_specialisation`` ahead of it
- ``statements``, ``stores``: loops, conditions, allocations, stores
- ``operations``, ``tma``, ``mma``: barriers and asynchronous copies, TMA, matrix instructions
- ``expressions``, ``arithmetic``, ``memory``: values, operators, loads
- ``access``: which elements an access touches, and how wide it may be
- ``cluster_loads``: which barrier of a cluster is enough
- ``function``, ``text``, ``types``: what is gathered for one function, C++ text, C++ types
"""
