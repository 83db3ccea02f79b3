"""Parameters of kernels: which there are, what was measured, and what a device can do at most."""
