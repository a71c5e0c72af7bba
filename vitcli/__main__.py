"""The program `vitcli`, also as `python -m vitcli`."""

import sys


def main() -> None:
    """Run vitcli. Ctrl-C ends it with one line, also while its modules are imported."""
    try:
        from vitcli.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("stopped immediately\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
