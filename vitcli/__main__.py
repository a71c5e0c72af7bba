"""`python -m vitcli`."""

from vitcli.cli.main import main

if __name__ == "__main__":
    main()
