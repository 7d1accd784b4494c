"""Runs uv with what this machine tells pip: ``python tools/run_uv.py pip sync requirements.lock``.

uv reads none of pip's files and variables. A machine that names a mirror, a proxy or a certificate
for pip means it for every download of a package, so each setting is handed on under uv's own name,
unless uv has its own setting. Like pip, uv then trusts the system's certificates, and works
where the user's cache directory cannot be written.
"""

import ast
import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

UV = Path(sysconfig.get_path("scripts")) / "uv"
SECTIONS = ("global", "install", ":env:")
"""Of ``pip config list``, those that ``pip install`` obeys; a later one overrides."""
VARIABLES = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "client-cert": ("SSL_CLIENT_CERT", " "),
    "proxy": ("ALL_PROXY", " "),
    "timeout": ("UV_HTTP_TIMEOUT", " "),
    "default-timeout": ("UV_HTTP_TIMEOUT", " "),
}
"""An option of pip, uv's variable for it, and what separates values there."""
ALWAYS = {
    "UV_INDEX_STRATEGY": "unsafe-best-match",  # one package from any index, as pip does: hashes pin
    "UV_PYTHON_DOWNLOADS": "never",
    "UV_SYSTEM_CERTS": "1",
}


def options(listing: str) -> dict[str, str]:
    """What ``pip install`` obeys of the output of ``pip config list``, by the option's name."""
    found: dict[str, str] = {}
    for section in SECTIONS:
        for line in listing.splitlines():
            key, _, value = line.partition("=")
            if key.startswith(f"{section}."):
                found[key.removeprefix(f"{section}.")] = ast.literal_eval(value)
    return found


def environment(pip: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """The variables uv is run with: those given, and pip's options where none is given."""
    settings = {
        variable: separator.join(pip[option].split())
        for option, (variable, separator) in VARIABLES.items()
        if pip.get(option)
    }
    return ALWAYS | settings | dict(given)


def _writable(cache: str) -> bool:
    try:
        Path(cache).mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(cache, os.W_OK | os.X_OK)


def _output(*command: str, env: Mapping[str, str]) -> str:
    run = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    return run.stdout.strip()


def main(arguments: list[str]) -> None:
    """Become uv.

    Raises:
        OSError: This environment has no uv.
    """
    listing = _output(sys.executable, "-m", "pip", "config", "list", env=os.environ)
    pip = options(listing)
    env = environment(pip, os.environ)
    cache = _output(str(UV), "cache", "dir", "--color", "never", env=env)
    if not cache or not _writable(cache):
        env["UV_CACHE_DIR"] = str(Path(__file__).parent.parent / ".cache" / "uv")
    if pip.get("no-index", "false").lower() in {"1", "true", "yes", "on"}:
        arguments = [*arguments, "--no-index"]
    os.execve(UV, [str(UV), *arguments], env)


if __name__ == "__main__":
    main(sys.argv[1:])
