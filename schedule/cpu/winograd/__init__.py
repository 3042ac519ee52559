"""Writes convolutions with windows of 3 x 3 with fewer multiplications, by Winograd's F(2 x 2, 3 x 3) (sketch
``cpu_winograd``).

A convolution of images with channels last comes in, and the kernel of one setting goes out. ``kernel`` puts the
transforms around the products that ``cpu.gemm`` writes; ``space`` describes the settings.
"""
