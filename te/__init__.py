"""Tensor expressions say what is computed, and never how.

``build`` writes an expression in Python, ``operators`` has a library of them, and ``json`` reads and writes them as
data. All give a checked ``workload.Workload``. ``reference`` computes what a workload means, ``tolerance`` says how far
a right kernel may be from that, and ``key`` gives a workload its identity.
"""
