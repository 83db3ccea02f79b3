"""Ops that work row by row: softmax, norms, losses."""
