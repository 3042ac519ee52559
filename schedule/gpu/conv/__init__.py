"""Convolutions on Hopper as implicit GEMM (sketch ``cuda_conv``).

The kernel is that of ``schedule.gpu.gemm``, whose operand A is loaded by im2col TMA, or in patches of pixels.

``space``  the sketch: which convolutions it takes, and what its knobs are beside those of the products
``fold``   the launch that folds images of few channels, and the product on them
``widen``  the launch that widens groups of less than 16 channels
``join``   the product of groups that share rows of shared memory
``weight_gradient``  the sketch ``cuda_conv_wgrad``: gradients towards filters, whose operand B is the images
"""
