"""The native kernel on CPU: C++ through jax.ffi. `library` loads what was built at installation."""
