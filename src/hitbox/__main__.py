"""`python -m hitbox` is `hitbox`."""

from hitbox.cli import main

main()
