"""The kernel IR: expressions, statements, kernels; verifier, text form, simplifier, interpreter."""
