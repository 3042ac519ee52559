"""Kernel classes for processors, one folder each.

A folder takes a problem and a target, describes the legal settings and writes the loops of one setting.
"""
