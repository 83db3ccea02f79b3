"""Copies between memory layouts, creation, and shape ops."""
