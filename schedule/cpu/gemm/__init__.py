"""Writes blocked matrix products and convolutions on a processor (sketches ``cpu_gemm``, ``cpu_gemm_dot``,
``cpu_gemm_amx``).

A product or a convolution comes in, and the kernel of one setting goes out. The sketches are in ``fma`` and
``dot_products``, and differ in their micro-kernel. ``space``, ``promising`` and ``prior`` describe the settings;
``kernel`` writes the loops around a micro-kernel, ``packing`` packs the operands, ``dot_kernel``, ``im2col`` and
``direct_convolution`` have micro-kernels and operands of their own.
"""
