"""``python -m unimarg``: the command line."""

from unimarg.cli import main

if __name__ == "__main__":
    main()
