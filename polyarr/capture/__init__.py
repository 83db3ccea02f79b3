"""Capture of functions for polyarr.compile: a tracing backend, passes over the program, and what runs it."""
