"""Transposing copies through shared memory (sketch ``cuda_permute``)."""
