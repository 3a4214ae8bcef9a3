"""Print one of the README's set-up commands: the bash block under the comment ``<!-- set-up: NAME -->``.

python .ci/setup_command.py README.md test
"""

import re
import sys
from pathlib import Path


def setup_command(readme: str, name: str) -> str:
    """Return the command; exactly one marker and, right under it, one fenced bash block that is not empty.

    Raises:
        ValueError: there is no such block, or several.
    """
    marker = f"<!-- set-up: {name} -->"
    if readme.count(marker) != 1:
        raise ValueError(f"{marker} stands {readme.count(marker)} times in it, not once")
    block = re.match(r"\s*```bash\n(.*?)\n```", readme.partition(marker)[2], flags=re.DOTALL)
    if block is None or not block[1].strip():
        raise ValueError(f"no ```bash block with a command follows {marker}")
    return block[1]


if __name__ == "__main__":
    path, wanted = sys.argv[1:]
    try:
        print(setup_command(Path(path).read_text(encoding="utf-8"), wanted))
    except (OSError, ValueError) as error:
        sys.exit(f"{path}: {error}")
