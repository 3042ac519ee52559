"""What a workload is, whatever the target: a matrix product, rows to reduce, a window, a convolution, an MLP.

Each module takes a ``te`` workload and returns its problem, or None where the workload is no such problem. Sketches
match on problems, and read extents, operands and the expressions of the epilogue from them.
"""
