"""The subcommands of `python -m tenferro_jax`, one in each file."""
