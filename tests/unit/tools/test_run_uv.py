"""uv obeys the machine's settings of pip, and needs no cache directory of the user's."""

import os
import subprocess
import sys
from pathlib import Path

from tools.run_uv import environment, options

ROOT = Path(__file__).parents[3]
LISTING = r"""
:env:.cert='/etc/ssl/ours.pem'
download.index-url='https://download.example/simple'
global.cert='/etc/ssl/theirs.pem'
global.index-url='https://global.example/simple'
install.find-links='\nhttps://one.example\nhttps://two.example'
install.index-url='https://mirror.example/simple'
"""


def test_the_section_of_pip_install_overrides_the_global_one_and_a_variable_overrides_both() -> (
    None
):
    assert options(LISTING) == {
        "cert": "/etc/ssl/ours.pem",
        "find-links": "\nhttps://one.example\nhttps://two.example",
        "index-url": "https://mirror.example/simple",
    }


def test_uv_gets_each_option_of_pip_under_its_own_name() -> None:
    told = environment({**options(LISTING), "extra-index-url": "a b", "quiet": "1"}, {})
    expected = {
        "UV_DEFAULT_INDEX": "https://mirror.example/simple",
        "UV_INDEX": "a b",
        "UV_FIND_LINKS": "https://one.example,https://two.example",
        "SSL_CERT_FILE": "/etc/ssl/ours.pem",
    }
    assert expected.items() <= told.items()
    assert told.keys() - expected.keys() == {
        "UV_INDEX_STRATEGY",
        "UV_PYTHON_DOWNLOADS",
        "UV_SYSTEM_CERTS",
    }


def test_uvs_own_settings_override_those_of_pip() -> None:
    given = {"UV_DEFAULT_INDEX": "https://uv.example/simple", "PATH": "/bin"}
    told = environment(options(LISTING), given)
    assert given.items() <= told.items()


def test_where_the_users_cache_cannot_be_written_the_cache_is_in_the_checkout(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    env = {name: value for name, value in os.environ.items() if name != "UV_CACHE_DIR"}
    env["FORCE_COLOR"] = "1"  # which would be in the path
    for cache, used in (("file", ROOT / ".cache/uv"), ("folder", tmp_path / "folder/uv")):
        run = subprocess.run(
            [sys.executable, ROOT / "tools/run_uv.py", "cache", "dir", "--color", "never"],
            env=env | {"XDG_CACHE_HOME": str(tmp_path / cache)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert Path(run.stdout.strip()) == used
