"""Reductions and prefix sums."""
