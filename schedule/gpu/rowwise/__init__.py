"""Reductions of rows, and outputs computed from the row and its statistics (sketch ``cuda_rowwise``)."""
