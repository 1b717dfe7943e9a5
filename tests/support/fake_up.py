"""`python -m tests.support.fake_up FLAGS`: `octavo up` with fake services behind it."""

import sys

from common.errors import OctavoError
from octavo.commands import up
from octavo.stack import config
from tests.support.fake_stack import fake_command_lines


def main() -> int:
    stack = config.from_namespace(up.make_parser().parse_args(sys.argv[1:]))
    try:
        return up.serve(stack, fake_command_lines(stack))
    except OctavoError as error:
        sys.stderr.write(f"{error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
