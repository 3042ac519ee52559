"""Kernel classes for graphics processors, one folder each, and what several of them share.

A folder takes a problem and a target, describes the legal settings (``space``) and writes the launches of one setting
(``kernel``, or ``mainloop`` and ``epilogue``).
"""
