"""Tensor expressions: what is computed, never how."""
