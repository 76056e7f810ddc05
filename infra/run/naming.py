"""How a run is named wherever a command asks for one, and what is said when no run fits.

A run is named by its folder, its id, the start of its id, or `last`. `last` has one meaning: the
newest run among the folders of `--runs`, so that no command ever speaks of another run than the
one that this directory conducted last, although others may share the bus.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from schemas.errors import SettingsError

LAST = "last"
HOW = "its folder, its id, the start of its id, or `last`: the newest under --runs"
_SHOWN = 5
_NEAR = 0.6
_NEAR_SHOWN = 2


def pick(name: str, known: Sequence[str], *, where: str) -> str:
    """Return the one known id that is or begins with `name`; raise SettingsError when none or
    several fit.

    known: ids, which begin with their time and so sort by age; where: "under runs", "on this bus".
    """
    ids = sorted(known)
    if name == LAST:
        if ids:
            return ids[-1]
        raise SettingsError(
            f"there is no run {where} that `{LAST}` could mean",
            hint="`sluice run` makes one; --runs says where run folders lie; a run of elsewhere "
            "goes by its id",
        )
    if name in ids:
        return name
    fits = [one for one in ids if name and one.startswith(name)]
    if len(fits) == 1:
        return fits[0]
    if fits:
        raise SettingsError(
            f"{len(fits)} runs called {name!r} {where}",
            hint=f"give more of the id: {', '.join(fits[-_SHOWN:])}",
        )
    raise SettingsError(f"no run called {name!r} {where}", hint=_known(name, ids))


def _known(name: str, ids: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, ids, n=_NEAR_SHOWN, cutoff=_NEAR)
    if near:
        return f"did you mean {' or '.join(near)}?"
    newest = ", ".join(ids[-_SHOWN:])
    return f"known: {newest} (newest last)" if ids else "known: none; `sluice run` makes one"
