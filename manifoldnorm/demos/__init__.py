"""Short demonstrations that the `manifoldnorm demo` command runs."""
