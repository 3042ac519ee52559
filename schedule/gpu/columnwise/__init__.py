"""Reductions over leading axes, so that neighbours in memory go to different results (sketch ``cuda_columnwise``)."""
