"""Write ``uv.lock`` and the hashed ``requirements/*.txt`` that are installed from it; ``--check`` only compares.

``--upgrade`` moves every dependency to the newest release that pyproject.toml permits.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROFILES = ("demo", "dev")


def uv(*args: str) -> str:
    """Run uv of this environment with settings of this project only, and return what it prints."""
    # A mirror that this machine happens to use has no place in a lock that everybody installs from.
    env = {key: value for key, value in os.environ.items() if not key.startswith(("UV_", "PIP_"))}
    program = Path(sysconfig.get_path("scripts")) / "uv"
    command = [str(program), "--no-config", "--quiet", *args]
    return subprocess.run(command, check=True, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True).stdout  # noqa: S603


def exported(profile: str) -> str:
    """Return the requirements of one profile, as uv.lock has them."""
    options = ("--no-header", "--no-annotate", "--no-emit-project", "--format", "requirements.txt")
    return uv("export", "--frozen", *options, "--extra", profile, "--group", "build")


def main() -> int:
    """Write or compare; return the exit code."""
    check = "--check" in sys.argv[1:]
    if check:
        uv("lock", "--check", "--offline")
    else:
        uv("lock", *sys.argv[1:])
    stale = []
    for profile in PROFILES:
        path = ROOT / "requirements" / f"{profile}.txt"
        text = exported(profile)
        if check and (not path.is_file() or path.read_text() != text):
            stale.append(str(path.relative_to(ROOT)))
        elif not check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
    if stale:
        print(f"{', '.join(stale)}: not what uv.lock says; run `make lock`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
