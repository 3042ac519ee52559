"""The plain loop nest of a workload, and the analyses that loop primitives need. A workload comes in, a kernel goes
out.

``nest`` turns a workload into a kernel of serial loops. ``tree`` finds loops and tensors in a kernel and puts changed
statements back. ``dependence`` says which iterations touch the same elements, and ``region`` which part of a tensor a
loop reads. The index arithmetic behind both is ``ir.linear_form``.
"""
