"""Convolutions with few filters, or few channels and filters, on matrix units, which read each pixel once (sketch
``cuda_conv_mma``).

A convolution as a product comes in (``problems.implicit_gemm``). ``space`` says which settings are legal, which are
promising and how long they may take; ``sizes`` what follows from them; ``kernel`` writes the launch of one setting.
"""
