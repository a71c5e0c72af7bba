"""`python -m vitcli`."""

from vitcli.cli.app import main

if __name__ == "__main__":
    main()
