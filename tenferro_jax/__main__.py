"""python -m tenferro_jax, and the command tenferro-jax."""

import sys

from .cli import main


def command() -> int:
    """The installed command tenferro-jax; returns its exit code."""
    return main(sys.argv[1:], "tenferro-jax")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
