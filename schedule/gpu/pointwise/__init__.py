"""Outputs whose elements are computed from elements that lie where they do (sketch ``cuda_pointwise``)."""
