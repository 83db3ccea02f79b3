"""Convolutions, pools and batch norm: work on windows of images."""
