"""Convolutions of images with few channels on matrix units, without a copy of the images (sketch
``cuda_conv_few_channels``).

A convolution as a product comes in (``problems.implicit_gemm``). ``tap_words`` says in which order its k is multiplied;
``space`` which settings are legal, which are promising and how long they may take; ``sizes`` what follows from them;
``kernel`` writes the launch of one setting, ``filter_columns`` and ``filter_rows`` what its warps compute.
"""
