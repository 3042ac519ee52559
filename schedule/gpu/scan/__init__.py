"""Kernels for scans: running sums, products, greatest and least elements, with what is fused to them.

What comes in is a ``problems.scan.ScanProblem``. What goes out is a kernel of one launch, which reads everything once.

``space``   the knobs, the legal and the promising settings, the prior (sketches ``cuda_scan`` and ``amdgpu_scan``)
``sizes``   how lines are shared out among threads, and what a thread block takes of a multiprocessor
``lines``   the lines of a thread, chunk by chunk: where they are, and how they come to registers
``sharing`` lines that several CTAs share: how these hand each other what they found
``kernel``  the launch: chunks of lines in registers, and how prefixes get from lane to lane and from warp to warp
"""
