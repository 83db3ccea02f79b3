"""`python -m polyarr`, for where the `polyarr` script is not on the path."""

from polyarr.cli import main

main(prog_name="polyarr")
