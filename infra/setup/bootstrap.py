"""First half of the set-up: system tools and the Python environment.

Run as `python3.11 -m infra.setup.bootstrap` by the system's Python. Invariants: only the standard
library and `schemas.errors` are imported; missing system tools never fail the set-up (the doctor
names them); the environment's stamp is written last, so that an interrupted install is done again.
"""

import os
import re
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from infra.setup.places import PYTHON_NEEDED, TOOLS, Places, find_places, python_is_right
from infra.setup.steps import run_step, said, say, write_atomically
from schemas.errors import Boundary, SettingsError, SluiceError, TransientError

TRIES = 3
APT_LIMIT_S = 300
INSTALL_LIMIT_S = 900


def missing_tools() -> list[str]:
    """Name the executables of TOOLS that are not on the path."""
    return [tool for tool in TOOLS if shutil.which(tool) is None]


def install_tools() -> str:
    """Install what is missing with apt-get, where that can be done; return a note, never raise."""
    missing = missing_tools()
    if not missing:
        return ""
    packages = sorted({TOOLS[tool] for tool in missing})
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return f"not installed, needs root and apt-get: {' '.join(packages)}"
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (
        ["apt-get", "update", "-q"],
        ["apt-get", "install", "-q", "-y", "--no-install-recommends", *packages],
    ):
        try:
            run(arguments, limit_s=APT_LIMIT_S, environ=quiet)
        except SluiceError as error:
            say(f"apt-get: {error}")
    still = missing_tools()
    return f"still missing: {' '.join(still)}" if still else " ".join(packages)


def ensure_uv(places: Places) -> Path:
    """Give the uv of the pinned version, installed once into its own small environment."""
    pinned = re.search(r"^uv==(\S+)$", places.constraints.read_text(), re.MULTILINE)
    if pinned is None:
        raise SettingsError("constraints.txt pins no uv", hint="add it to requirements.in")
    folder, version = places.bootstrap, pinned[1]
    uv = folder / "bin" / "uv"
    if not (folder / f".uv-{version}").exists():
        run([sys.executable, "-m", "venv", "--clear", str(folder)])
        run([str(folder / "bin" / "python"), "-m", "pip", "install", "-q", f"uv=={version}"])
        write_atomically(folder / f".uv-{version}", "")
    return uv


def install_environment(places: Places) -> str:
    """Install exactly the pinned packages; raises TransientError when they cannot be installed."""
    uv = ensure_uv(places)
    environ = {**os.environ, "UV_CACHE_DIR": str(places.uv_cache)}
    run(
        [str(uv), "venv", "-q", "--clear", "--python", sys.executable, str(places.venv)],
        environ=environ,
    )
    # The pins are a closed set, so nothing is resolved and no override is needed here.
    install = [str(uv), "pip", "install", "-q", "--no-deps", "-r", str(places.constraints)]
    run([*install, "--python", str(places.venv / "bin" / "python")], environ=environ)
    write_atomically(places.venv_stamp, places.venv_key + "\n")
    return places.venv_key


def link_environment(places: Places) -> None:
    """Point the checkout's `.venv` at it; raises SettingsError if a real folder is there."""
    link = places.venv_link
    if link.is_symlink() and link.readlink() == places.venv:
        return
    if link.exists() and not link.is_symlink():
        raise SettingsError(
            f"{link} is a folder of its own", hint="move it away, then run `make setup` again"
        )
    draft = link.with_name(f".venv.{os.getpid()}")
    draft.symlink_to(places.venv)
    draft.replace(link)


def prepare(places: Places, *, with_tools: bool) -> None:
    """Make the environment, with the system tools first when they are asked for."""
    if not python_is_right():
        needed = ".".join(str(part) for part in PYTHON_NEEDED)
        raise SettingsError(
            f"this is Python {sys.version.split()[0]}, the pins are for {needed}",
            hint=f"install python{needed}, or name one: `make setup PYTHON=path/to/python{needed}`",
        )
    locks = places.home / "locks"
    if with_tools:
        run_step(
            "system tools",
            lambda: not missing_tools(),
            install_tools,
            locks / "none",
            locks / "apt",
        )
    # Only one set-up may fill an environment, whichever checkout it serves.
    run_step(
        "python environment",
        places.venv_stamp.exists,
        lambda: install_environment(places),
        places.venv,
        locks / f"venv-{places.venv_key}",
    )
    run_step(
        "bytecode",
        places.bytecode_stamp.exists,
        lambda: compile_bytecode(places),
        locks / "none",
        locks / f"venv-{places.venv_key}",
    )
    link_environment(places)


def compile_bytecode(places: Places) -> str:
    """Compile every module of the environment once.

    Where the interpreter is told to write no bytecode, as in many containers, each of a run's
    processes would compile torch and vLLM for itself at every start: some 20 s of processor time.
    """
    packages = next((places.venv / "lib").glob("python*")) / "site-packages"
    run(
        [
            *(str(places.venv / "bin" / "python"), "-W", "ignore", "-m", "compileall"),
            # Packages carry a few files for other Pythons, which do not compile and are not needed.
            *("-q", "-q", "-j", "0", "-x", "/tests/", str(packages)),
        ],
        accepted=(0, 1),
    )
    write_atomically(places.bytecode_stamp, "")
    return "so that no process compiles for itself"


def run(
    arguments: Sequence[str],
    *,
    limit_s: float = INSTALL_LIMIT_S,
    environ: dict[str, str] | None = None,
    accepted: Sequence[int] = (0,),
) -> None:
    """Run a command, up to TRIES times; raises TransientError with its last lines.

    accepted: the exit codes that are no failure.
    """
    last = ""
    for attempt in range(TRIES):
        try:
            code, told = said(arguments, environ=environ, limit_s=limit_s)
        except OSError as error:
            raise SettingsError(
                f"{arguments[0]} does not start: {error}", hint="install it, then try again"
            ) from error
        if code in accepted:
            return
        last = "\n".join(told.splitlines()[-8:])
        time.sleep(2.0**attempt)
    raise TransientError(
        f"{' '.join(arguments[:4])} ... failed {TRIES} times; its last words: {last}",
        boundary=Boundary.PLATFORM,
        hint="look at its words; when they speak of the network, run `make setup` again",
    )


def main(arguments: Sequence[str]) -> int:
    """Run the first half of the set-up; 0 done, 1 failed."""
    try:
        prepare(find_places(os.environ), with_tools="--with-tools" in arguments)
    except SluiceError as error:
        say(f"set-up failed: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
