"""Passes over the kernel IR, each a function from kernel to kernel."""
