"""Matrix products and linear layers: portable kernels, GEMV kernels, and kernels for matrix units (tensor cores)."""
