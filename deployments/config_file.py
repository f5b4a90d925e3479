"""The configuration as a file: YAML of its own, or the arguments in a Serve config."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from engine.errors import InvalidRequest

APPLICATION = "deployments.app:build"
"""As a Serve config names it in `import_path`."""


class ConfigError(InvalidRequest):
    """The configuration can't be used; the message names the key."""

    code = "invalid_config"


def read_yaml(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no text in UTF-8"
        raise ConfigError(f"Configuration {path} can't be read: {reason}.") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f" at line {mark.line + 1}, column {mark.column + 1}"
        problem = getattr(error, "problem", None) or "it can't be parsed"
        raise ConfigError(f"Configuration {path} is not YAML{where}: {problem}.") from None
    if not isinstance(values, dict):
        raise ConfigError(f"Configuration {path} is not a mapping of keys to values.")
    return values


def application_arguments(serve_config: Mapping[str, Any], path: Path) -> Path | dict[str, Any]:
    """What our application's `args` are: a mapping, or a path of another file."""
    applications = serve_config["applications"]
    for application in applications if isinstance(applications, list) else ():
        if isinstance(application, dict) and application.get("import_path") == APPLICATION:
            args = application.get("args") or {}
            return Path(args["config"]) if "config" in args else dict(args)
    raise ConfigError(f"Configuration {path} has no application with import_path {APPLICATION}.")
