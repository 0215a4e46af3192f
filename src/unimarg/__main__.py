"""``python -m unimarg``: the command line."""

from unimarg.cli import run

if __name__ == "__main__":
    run()
