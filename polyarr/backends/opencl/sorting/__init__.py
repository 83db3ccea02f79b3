"""Sort, argsort and top-k."""
