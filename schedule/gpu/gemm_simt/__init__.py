"""Large products by fused multiply-adds of single threads, on every architecture (``cuda_gemm_simt``).

It is for products in IEEE arithmetic, which matrix instructions do not do, for those of integers of 32 and 64 bits, and
for pairwise reductions, which have another term than a product, such as distances. CUTLASS calls such kernels SIMT
(``OpClassSimt``). What comes in is a ``Gemm`` (``schedule.problems.gemm``) and a setting of the knobs. What goes out is
a kernel.

``space``      the sketch: knobs, constraints, quantities, and what the modules below say of a setting
``sizes``      the knobs, and the record of all sizes that follow from a setting
``prior``      the estimated time of a setting, and which settings are worth a measurement
``term``       what is combined for each place of k, and how many instructions that takes
``mainloop``   the kernel: stages, fragments, products, and the epilogue
"""
