"""Models of other systems as graphs.

``fx`` reads what torch traces, by the rules of ``aten``; it is the only file that imports torch. ``onnx`` reads ONNX.
"""
