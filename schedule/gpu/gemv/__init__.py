"""Products of a matrix A with at most eight rows and a large matrix B, by plain arithmetic (sketch ``cuda_gemv``).

What comes in is a ``Gemm`` (``schedule.problems.gemm``) of any element types and a setting of the knobs; what goes out
is a kernel. ``space`` has the knobs, the constraints, the rules of thumb and the prior; ``sizes`` the record of what
follows from a setting; ``kernel`` writes it.
"""
