"""Passes that rewrite kernel IR on its way to a backend. Each is a function from kernel to kernel.

A kernel with parallel, vectorised and unrolled loops comes in. After ``pipeline.run_passes`` it has serial and parallel
loops over vector expressions. The backends for graphics processors pick passes of their own (``PASSES`` in
``cuda.backend`` and ``amdgpu.backend``).

- ``partition``, ``vectorise``, ``unroll``, ``narrow``: the passes; ``deduplicate``: runs them once for equal statements
- ``copies``, ``conditions``, ``index_bounds``: what they share
"""
