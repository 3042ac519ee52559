"""Chains of matrix products with statistics of their rows, in one launch (sketch ``cuda_mlp``)."""
