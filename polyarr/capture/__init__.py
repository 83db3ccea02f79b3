"""Capturing functions: a trace is a backend. The passes over what it noted, and what runs it."""
