"""Tensor operations of the decode path, one folder each, a torch reference in every one.

The references run on any device and say what the operation means; faster twins are held
against them.
"""
