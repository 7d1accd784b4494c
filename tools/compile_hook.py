"""A hook of the wheel's build: compiles the pure packages of the request path (ADR 17).

It runs only where the build is asked to, with ``HATCH_BUILD_HOOK_ENABLE_CUSTOM=1``; an editable
install stays as it is. The sources go into the wheel all the same, and are what a traceback shows.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMPILED = (
    "fencelog/types.py",
    "fencelog/wire/batch.py",
    "fencelog/wire/control.py",
    "fencelog/wire/framing.py",
    "fencelog/wire/headers.py",
    "fencelog/wire/hot/*.py",
    "fencelog/wire/primitives.py",
    "fencelog/log/*.py",
)
"""Of ``src``. Only pure code: see ADR 17 for what becomes of code that awaits."""
SETUP = """
import sys
from mypyc.build import mypycify
from setuptools import setup
*names, target, level = sys.argv.pop().split("\\n")
modules = mypycify(names, target_dir=target, opt_level=level, group_name="fencelog")
setup(name="fencelog", packages=[], ext_modules=modules)
"""


class CompileHook(BuildHookInterface[Any]):
    """Adds the compiled modules to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and tell the builder what to include."""
        if version == "editable":
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        self._directory = tempfile.TemporaryDirectory(prefix="fencelog-compiled-")
        built = compile_into(Path(self.root) / "src", Path(self._directory.name))
        build_data["force_include"].update({str(path): str(name) for path, name in built.items()})

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled: it is in the wheel."""
        del version, build_data, artifact_path
        if hasattr(self, "_directory"):
            self._directory.cleanup()


def compile_into(source: Path, target: Path) -> dict[Path, Path]:
    """Compile to ``target``; return each library with its place in the wheel."""
    names = sorted(str(path.relative_to(source)) for name in COMPILED for path in source.glob(name))
    level = os.environ.get("MYPYC_OPT_LEVEL", "3")
    what = "\n".join([*names, str(target / "c"), level])
    to = ["--build-lib", str(target / "lib"), "--build-temp", str(target / "o")]
    subprocess.run([sys.executable, "-c", SETUP, "build_ext", *to, what], cwd=source, check=True)
    libraries = (target / "lib").rglob("*.so")
    return {path: path.relative_to(target / "lib") for path in libraries}
