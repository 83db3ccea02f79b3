"""Kernel parameters: which exist, what was measured, and a device's peak rates."""
