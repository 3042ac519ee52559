"""Scans on a processor: running sums, products, greatest and least elements, with what is fused to them.

A ``ScanProblem`` and a setting come in, and a kernel goes out.

``space``   the knobs, the legal and the promising settings, the prior (sketch ``cpu_scan``)
``kernel``  the loops: running values of several lines in registers
"""
