"""The group linalg: elimination, QR decomposition, and eigenvalues and singular values by two methods."""
