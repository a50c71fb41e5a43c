"""The flags that JAX marks as upgrades: what a later version does by default.

`env $(python -m tests.upgrades) python -m pytest` runs the tests with all of them on.
"""

from __future__ import annotations

import jax

LEFT_OUT = {
    "jax_scan3": "scan ignores reverse=True, and has no jax.grad and no jax.vmap",
}
"""Flags with which plain JAX itself fails, and how."""


def upgrades() -> list[str]:
    """The flags of the installed JAX whose help says that a later version turns them on."""
    return [
        name
        for name, (_, _, described) in jax.config.meta.items()
        if "will be enabled by default in future versions" in str(described.get("help"))
    ]


def is_on(name: str) -> bool:
    """Whether the installed JAX has this flag, and it is on."""
    return bool(jax.config.values.get(name))


def main() -> None:
    """Print the variables of the environment that turn the flags on."""
    print(*(f"{name.upper()}=1" for name in upgrades() if name not in LEFT_OUT))


if __name__ == "__main__":
    main()
