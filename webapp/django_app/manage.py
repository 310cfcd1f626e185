"""Django's commands for this project: ``python -m webapp.django_app.manage check``."""

from __future__ import annotations

import os
import sys

from django.core.management import execute_from_command_line

__all__ = ["main"]


def main() -> None:
    """Run the command that the command line names."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.django_app.settings")
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
