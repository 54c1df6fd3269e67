"""`python -m mnnconvert` is the command line."""

from mnnconvert.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
