"""Loop-nest primitives: each a pure function from kernel to kernel."""
