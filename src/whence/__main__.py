"""`python -m whence`, the same as `whence`."""

from whence.cli import main

if __name__ == "__main__":
    main(prog_name="whence")
