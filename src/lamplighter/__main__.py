"""`python -m lamplighter`: the command `lamp` where its script is not on the path."""

from lamplighter.cli import main

if __name__ == "__main__":
    main()
