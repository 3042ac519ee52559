"""Large matrix products on the MFMA instructions of AMD's graphics processors (sketch ``amdgpu_gemm``).

What comes in is a ``Gemm`` (``schedule.problems.gemm``) and a setting of the knobs. What goes out is a kernel of one
launch.

``space``     the sketch: knobs, quantities, which settings are legal, and which are promising
``sizes``     the knobs, and the record of all sizes that follow from a setting
``prior``     the estimated time of a setting
``mainloop``  the kernel: operands in shared memory, fragments, products, and the epilogue
"""
