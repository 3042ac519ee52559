"""Blocked matrix products and convolutions on a processor: packing, register tiles, dot products and AMX tiles."""
