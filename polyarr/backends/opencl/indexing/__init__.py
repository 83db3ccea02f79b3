"""Gather, scatter, segmented sums, embedding."""
