"""The command `tritium`. Help and completion do without the runtime, which `import tritium` loads where this module is absent."""


def main() -> None:
    """Run the command line."""
    from tritium.cli.root import main as run

    run()
