"""Reads models of other systems as graphs. A traced graph, a model or a module comes in; a ``graph.graph.Graph`` goes
out, and the weights beside it.

``fx`` reads what torch traces, by the rules of ``aten``; it is the only file that imports torch. ``onnx`` reads ONNX
models, and ``stablehlo`` reads the modules of JAX and XLA. ``weighted_graph`` is a graph with its weights.
"""
