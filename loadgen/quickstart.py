"""Where a quickstart (`make serve`) keeps what a client of it needs: `docs/load.md` says so too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from loadgen.client.roster import Member, Roster, RosterError

ADMIN = "admin"
KEYS, MODEL, ORIGIN = "keys.json", "model", "origin.json"
DEMO = {"acme": "support", "globex": "sql", "blackbeard": "pirate"}


class Quickstart(NamedTuple):
    """admin_key; its base model's folder, and how adapters name that; its three tenants."""

    admin_key: str
    base: Path
    base_name: str
    roster: Roster

    @classmethod
    def read(cls, folder: Path) -> Quickstart:
        """From its data folder, `.loraplex/quickstart`. Raises RosterError."""
        try:
            keys = json.loads((folder / KEYS).read_text())
            members = [Member(t, keys[t], (f"{t}/{a}",)) for t, a in DEMO.items()]
            name = json.loads((folder / MODEL / ORIGIN).read_text())["name"]
            return cls(keys[ADMIN], folder / MODEL, name, Roster(tuple(members)))
        except (OSError, ValueError, KeyError) as error:
            raise RosterError(
                f"{folder} is not a quickstart's data ({error}). Start it with `make serve`."
            ) from None
