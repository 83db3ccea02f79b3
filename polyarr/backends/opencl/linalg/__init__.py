"""The group linalg: elimination and QR decomposition by blocks, eigenvalues and singular values by Jacobi's method."""
