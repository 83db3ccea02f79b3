"""Elementwise ops, random bits, dropout, and the optimizer's update."""
