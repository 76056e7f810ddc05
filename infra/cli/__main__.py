"""Lets `python -m infra.cli` be the `sluice` command."""

from infra.cli.app import main

if __name__ == "__main__":
    main()
