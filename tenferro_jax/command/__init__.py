"""Floor 9: the subcommands of `python -m tenferro_jax`, one a file."""
