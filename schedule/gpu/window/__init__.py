"""Small windows over neighbouring pixels: pooling and depthwise convolution (sketch ``cuda_window``)."""
