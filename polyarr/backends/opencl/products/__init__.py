"""Matrix products and linear layers: portable kernels, and those for matrix units."""
