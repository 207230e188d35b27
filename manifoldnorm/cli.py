"""The `manifoldnorm` command."""


def main() -> None:
    """Run the command line."""
