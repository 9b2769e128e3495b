"""The settings of `hitbox serve`: from a TOML file, the environment and flags; the later of these is the stronger.

    max_batch = 500                 a line of the file that --config names
    HITBOX_SERVE_MAX_BATCH=500      a variable of the environment
    --max-batch 500                 a flag

`Serving` and `Settings` are the table of settings. Flags, variables, keys, --help and the table in the docs are made
from them: `python -m hitbox.broker.commands.configuration` prints that table.
"""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import msgspec
import typer

from hitbox.broker.logs import LogFormat, LogLevel
from hitbox.broker.settings import MOST, Settings
from hitbox.errors import nearest
from hitbox.protocol.errors import BadRequest

PREFIX = "HITBOX_SERVE_"
TOML_LINE = re.compile(r"\(at line (\d+), column \d+\)")
MOST_BYTES = 2**20
"""Size of a configuration file; a larger one is not one."""


class Serving(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the process around the broker."""

    data: Annotated[str, msgspec.Meta(description="folder in which the broker keeps its data")] = ""
    schema: Annotated[
        str, msgspec.Meta(description="for a new broker: price:float,city:string or a JSON file; - for JSON from stdin")
    ] = ""
    host: Annotated[
        str, msgspec.Meta(description="address to listen on; any other than loopback requires a token", min_length=1)
    ] = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(description="port to listen on; 0: any free one", ge=0, le=65535)] = 8400
    allow_origin: Annotated[
        list[str], msgspec.Meta(description="web origins whose pages may call the broker; several are a list")
    ] = []
    tls_cert: Annotated[str, msgspec.Meta(description="certificate (PEM), read again on SIGHUP")] = ""
    tls_key: Annotated[str, msgspec.Meta(description="key of the certificate (PEM)")] = ""
    tls_client_ca: Annotated[
        str, msgspec.Meta(description="only clients with a certificate of this authority (PEM) may connect")
    ] = ""
    allow_plain_text: Annotated[bool, msgspec.Meta(description="serve another address than loopback without TLS")] = (
        False
    )
    log_level: Annotated[
        LogLevel, msgspec.Meta(description="messages below this are not logged; info includes the access log")
    ] = "warning"
    log_format: Annotated[LogFormat, msgspec.Meta(description="one line of text or one JSON object per message")] = (
        "text"
    )


TABLES = (Serving, Settings)


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of the table of settings."""

    name: str
    table: type[msgspec.Struct]
    default: Any
    limits: str
    help: str
    is_list: bool

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    def check(self, value: Any, strict: bool) -> Any:
        """The value with its type; raises ValueError. `strict`: a text is not a number."""
        try:
            return getattr(msgspec.convert({self.name: value}, self.table, strict=strict), self.name)
        except msgspec.ValidationError:
            raise ValueError(f"{self.name} cannot be {value!r:.80}; valid: {self.limits}") from None


def _settings() -> Iterator[Setting]:
    for table in TABLES:
        shape: Any = msgspec.inspect.type_info(table)
        for one in shape.fields:
            kind, help = one.type.type, one.type.extra_json_schema["description"]
            default = [] if one.default is msgspec.NODEFAULT else one.default
            is_list = isinstance(kind, msgspec.inspect.ListType)
            yield Setting(one.name, table, default, _limits(kind), help, is_list)


def _limits(kind: Any) -> str:
    match kind:
        case msgspec.inspect.UnionType():
            return " or ".join(_limits(one) for one in kind.types)
        case msgspec.inspect.NoneType():
            return "none"
        case msgspec.inspect.LiteralType():
            return ", ".join(map(str, kind.values))
        case msgspec.inspect.IntType() | msgspec.inspect.FloatType():
            name = "integer" if isinstance(kind, msgspec.inspect.IntType) else "number"
            low = f"above {kind.gt:g}" if kind.gt is not None else f"from {kind.ge:g}"
            return f"{name} {low}" + (f" to {kind.le}" if kind.le != MOST else "")
        case msgspec.inspect.BoolType():
            return "true or false"
        case msgspec.inspect.ListType():
            return "list of texts"
        case _:
            return "text"


SETTINGS = {one.name: one for one in _settings()}


# ---- reading


@dataclass
class Configuration:
    """The effective settings. `sources`: where each one that is not a default comes from."""

    values: dict[str, Any] = field(default_factory=lambda: {one.name: one.default for one in SETTINGS.values()})
    sources: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def _take(self, name: str, value: Any, source: str, strict: bool) -> None:
        try:
            self.values[name] = SETTINGS[name].check(value, strict)
            self.sources[name] = source
        except ValueError as problem:
            self.problems.append(f"{source}: {problem}")

    def raise_problems(self) -> None:
        if self.problems:
            raise BadRequest("\n".join(self.problems))

    def _of(self, table: type[msgspec.Struct]) -> dict[str, Any]:
        return {name: value for name, value in self.values.items() if SETTINGS[name].table is table}

    @property
    def serving(self) -> Serving:
        return Serving(**self._of(Serving))

    @property
    def settings(self) -> Settings:
        return Settings(**self._of(Settings))

    def describe(self) -> str:
        """The effective settings, one per line, as TOML with their sources."""
        lines = [f"{name} = {_toml(value)}" for name, value in self.values.items()]
        sources = [self.sources.get(name, "default") for name in self.values]
        width = max(map(len, lines))
        return "\n".join(f"{line:<{width}}  # {source}" for line, source in zip(lines, sources, strict=True))


def _toml(value: Any) -> str:
    return '"none"' if value is None else msgspec.json.encode(value).decode()


def read(file: Path | None, environment: Mapping[str, str], flags: Mapping[str, Any]) -> Configuration:
    """Read all settings. `flags`: texts, or lists of texts; None if not given. What is wrong is in `problems`."""
    found = Configuration()
    if file is not None:
        _read_file(file, found)
    for variable, text in environment.items():
        if not variable.startswith(PREFIX):
            continue
        name = variable.removeprefix(PREFIX).lower()
        if variable != variable.upper() or name not in SETTINGS:
            known = [one.variable for one in SETTINGS.values()]
            found.problems.append(
                f"environment: there is no setting {variable:.80}{nearest(variable.upper(), known)} "
                "(`hitbox serve --help` lists all)"
            )
        else:
            found._take(name, _from_text(name, text), f"environment {variable}", strict=False)
    for name, given in flags.items():
        if given is not None:
            found._take(name, given if SETTINGS[name].is_list else _from_text(name, given), SETTINGS[name].flag, False)
    return found


def _from_text(name: str, text: str) -> Any:
    setting = SETTINGS[name]
    if setting.is_list:
        return [part.strip() for part in text.split(",") if part.strip()]
    return None if setting.default is None and text.strip().lower() == "none" else text


def _read_file(file: Path, found: Configuration) -> None:
    try:
        with file.open("rb") as opened:
            raw = opened.read(MOST_BYTES + 1)
        if len(raw) > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES} bytes")
        text = raw.decode()
        given = tomllib.loads(text)
    except OSError as problem:
        found.problems.append(f"{file}: cannot be read: {problem.strerror or problem}")
        return
    except (ValueError, RecursionError) as problem:  # not UTF-8, not TOML, or nested too deeply
        at = TOML_LINE.search(str(problem))
        found.problems.append(f"{file}{f', line {at[1]}' if at else ''}: not TOML: {problem}")
        return
    for name, value in given.items():
        place = f"{file}{_line(text, name)}"
        if name not in SETTINGS:
            what = "table" if isinstance(value, dict) else "setting"
            found.problems.append(
                f"{place}: there is no {what} {name!r:.80}{nearest(name, SETTINGS)} (`hitbox serve --help` lists all)"
            )
        else:
            value = None if SETTINGS[name].default is None and value == "none" else value
            found._take(name, value, place, strict=True)


def _line(text: str, name: str) -> str:
    """ ", line 3" for the first line that begins with this key."""
    key = re.compile(rf"""\s*\[*\s*["']?{re.escape(name)}["']?\s*[].=]""")
    for number, line in enumerate(text.splitlines(), 1):
        if key.match(line):
            return f", line {number}"
    return ""


# ---- flags and docs


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one flag per setting. The command gets them as keyword arguments; None: not given."""
    hints = get_type_hints(command, include_extras=True)
    own = [
        one.replace(annotation=hints[one.name])
        for one in inspect.signature(command).parameters.values()
        if one.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [*own, *(_parameter(one) for one in SETTINGS.values())]
    )
    return command


def _parameter(setting: Setting) -> inspect.Parameter:
    is_switch = isinstance(setting.default, bool)
    option = typer.Option(
        f"{setting.flag}/--no-{setting.flag[2:]}" if is_switch else setting.flag,
        help=f"{setting.help} ({setting.limits}; default: {_shown(setting.default)})",
        metavar=None if is_switch else "VALUE",
        show_default=False,
        rich_help_panel="Settings",
    )
    kind: Any = bool | None if is_switch else list[str] | None if setting.is_list else str | None
    return inspect.Parameter(
        setting.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option]
    )


def _shown(default: Any) -> str:
    if isinstance(default, bool):
        return str(default).lower()
    return "none" if default in (None, "", []) else f"{default:g}" if isinstance(default, float) else str(default)


def table() -> str:
    """The settings as a Markdown table, for the docs."""
    rows = [f"| `{one.name}` | {_shown(one.default)} | {one.limits} | {one.help} |" for one in SETTINGS.values()]
    return "\n".join(["| setting | default | values | meaning |", "| --- | ---: | --- | --- |", *rows])


if __name__ == "__main__":
    print(table())
