"""Sums of what several devices hold, by NCCL or through memory of the host."""
