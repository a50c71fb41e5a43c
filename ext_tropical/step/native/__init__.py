"""The native route on CPU: C++ through jax.ffi. `library` finds what was built at install, `kernel` calls it."""
