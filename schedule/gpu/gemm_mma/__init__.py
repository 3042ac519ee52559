"""Large matrix products by mma.sync, fed by cp.async in several stages, on every architecture (``cuda_gemm_mma``).

What comes in is a ``Gemm`` (``schedule.problems.gemm``) and a setting of the knobs. What goes out is a kernel.

``space``      the sketch: knobs, constraints, quantities, and what the modules below say of a setting
``sizes``      the knobs, and the record of all sizes that follow from a setting
``prior``      the estimated time of a setting
``pruning``    which legal settings are worth a measurement
``mainloop``   the kernel: stages, fragments, products, and the epilogue
``operands``   how wide copies of an operand can be, and how its rows lie in shared memory
"""
