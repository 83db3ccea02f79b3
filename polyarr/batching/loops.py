"""Loops whose state is a tree of arrays: scan over a leading axis, and while_loop."""
