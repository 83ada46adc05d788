"""Compares the documents with the code: every table that repeats a fact."""

import ast
import inspect
import re
import tomllib
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
import click
import msgspec
import pytest
from msgspec import structs
from msgspec.structs import fields

from ktuned import kernel
from ktuned.backends.cuda import DEFAULT_TARGET
from ktuned.catalog import project_file
from ktuned.cli.commands import jobs, results, watch
from ktuned.cli.output import Exit
from ktuned.cli.program import COMMANDS, cli
from ktuned.daemon import assembly, settings
from ktuned.daemon.assembly import Replacements
from ktuned.daemon.daemon import Daemon
from ktuned.daemon.lifetime import AUTO_IDLE_EXIT_S
from ktuned.daemon.systemd import Notifier
from ktuned.declaration.tensors import FILLS
from ktuned.fleet.cluster import ClusterSettings
from ktuned.model.keys import DeviceModel, KernelName
from ktuned.model.plan import PRESETS, Plan
from ktuned.model.values import Outcome
from ktuned.protocol import EVENT_TYPES, JobInfo, NoParams
from ktuned.protocol.jobs import Job, JobState, Priority
from ktuned.protocol.winners import Status
from ktuned.serve import server
from ktuned.serve.listener import bind_socket
from ktuned.serve.team_store import MIN_PULL_S, ShareSettings
from ktuned.tuning.limits import DEFAULT_DEADLINES
from ktuned.user_directories import find_user_directories
from ktuned_client import wire
from tests.daemon_parts import Parts
from tests.trials import make_trial

ROOT = Path(__file__).parent.parent
REFERENCE = "docs/reference/cli.md"
PLACES_OF_DOCUMENTS = ("*.md", "docs/**/*.md", "client/*.md", "plugins/*/*.md", "examples/*/*.md")
DOCUMENTS = sorted(path for pattern in PLACES_OF_DOCUMENTS for path in ROOT.glob(pattern))


def read_table(document: str, heading: str) -> list[list[str]]:
    """Return the rows, without the header, of the first table below a heading."""
    _, _, rest = (ROOT / document).read_text().partition(f"\n{heading}\n")
    lines = re.search(r"(?:^\|.*\n)+", rest, re.MULTILINE)
    assert lines, f"{document} has no table below {heading}"
    # A cell may hold an escaped bar.
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines[0].splitlines()]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def read_names(document: str, heading: str) -> list[str]:
    return [name for row in read_table(document, heading) for name in re.findall(r"`(\w+)`", row[0])]


def read_code_words(cell: str) -> list[str]:
    """Return the words in a cell's code spans, without remarks in parentheses."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", cell)
    return [word for code in re.findall(r"`([^`]+)`", re.sub(r"\([^()]*\)", "", plain)) for word in code.split()]


@pytest.fixture
async def daemon(parts: Parts, tmp_path: Path) -> AsyncGenerator[Daemon]:
    """Run a daemon over the parts' store and workers in this process."""
    loaded = settings.load_settings({"KTUNED_HOME": f"{tmp_path}/home", "KTUNED_SOCKET": f"{tmp_path}/run/k.sock"})
    made = Daemon(assembly.Parts(loaded, parts.store, Replacements(adopts=False)), Notifier())
    with bind_socket(loaded.socket) as listening:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(made.run_until_stopped, listening, is_bound=False))
            yield made
            made.stopping.set()


def test_presets_have_the_documented_figures() -> None:
    documented = {
        row[0].strip("`"): [float(cell) for cell in row[1:]]
        for row in read_table("docs/reference/kernel-files.md", "## Presets")
    }
    meant = {
        preset.name: [
            float(value)
            for value in (
                preset.warmup,
                preset.repetitions,
                preset.timing_s,
                preset.finalists,
                preset.finalist_rounds,
            )
        ]
        for preset in PRESETS.values()
    }
    assert documented == meant


def test_all_outcomes_and_statuses_are_explained() -> None:
    assert read_names(REFERENCE, "## Outcomes") == [str(outcome) for outcome in Outcome]
    assert read_names("docs/guide/answers.md", "## Statuses") == [
        *(str(status) for status in Status),
        "invalid",
        "unavailable",
    ]


def test_the_arguments_of_kernel_are_explained() -> None:
    """No argument is missing, and none is invented."""
    parameters = inspect.signature(kernel).parameters.values()
    taken = {one.name for one in parameters if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)}
    assert set(read_names("docs/reference/kernel-files.md", "## `@kernel(...)`")) == taken


def test_each_extra_and_backend_is_in_the_table_of_installs() -> None:
    """Extras that need torch say so."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    rows = read_table("docs/guide/install.md", "## Install")
    named = {extra: row[1] for row in rows for extra in re.findall(r"`(?:ktuned)?\[([\w-]+)\]`", row[0])}
    assert named.keys() == project["optional-dependencies"].keys() - {"dev"}
    plugins = {path.parent.name.replace("_", "-"): path for path in ROOT.glob("plugins/*/pyproject.toml")}
    backends = set()
    for name, path in plugins.items():
        plugin = tomllib.loads(path.read_text())["project"]
        needs_torch = any(re.match(r"torch\b", wanted) for wanted in plugin["dependencies"])
        assert (named[name] == "torch") == needs_torch, name
        backends |= {name} if "ktuned.backends" in plugin.get("entry-points", {}) else set()
    assert {name.replace("_", "-") for name in read_names("docs/reference/kernel-files.md", "## Backends")} == backends


def test_the_readme_s_commands_exist() -> None:
    """The first block installs what it runs; each measured row names an existing script."""
    readme = (ROOT / "README.md").read_text()
    first = re.search(r"^```\n(.*?)^```$", readme, re.DOTALL | re.MULTILINE)
    assert first
    assert re.match(r"pip install --find-links dist 'ktuned\[\w+\]' .*\nktuned run ", first[1])
    commands = [re.match(r"`python (benchmarks/\w+\.py) [^`]+`$", row[3]) for row in read_table("README.md", "```")]
    assert [command for command in commands if command is None or not (ROOT / command[1]).exists()] == []


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_the_sizes_of_the_development_environment_are_those_of_make_install(document: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    text = (ROOT / document).read_text()
    for name in ("DOWNLOAD", "INSTALLED"):
        size = re.search(rf"^{name} := ([\d.]+ GiB)", makefile, re.MULTILINE)
        assert size
        assert size[1] in text


def test_all_fills_and_deadlines_are_documented() -> None:
    assert set(read_names("docs/reference/kernel-files.md", "## Tensors")) == set(FILLS)
    told = {row[0].strip("`"): float(row[1]) for row in read_table("docs/reference/kernel-files.md", "## Deadlines")}
    assert told == dict(DEFAULT_DEADLINES)


def test_the_directories_to_delete_are_those_of_the_code() -> None:
    """The page about uninstalling names each of them, as does the table of where files lie."""
    rows = read_table("docs/guide/install.md", "## Where files lie")
    uninstall = (ROOT / "docs/guide/install.md").read_text().partition("\n## Uninstall\n")[2]
    defaults = [f"~/{path.relative_to('/home/me')}" for path in find_user_directories({"HOME": "/home/me"})]
    chosen = find_user_directories({"KTUNED_HOME": "/chosen"})
    assert [row[1].strip("`") for row in rows[:3]] == defaults
    assert [row[2].strip("`").replace("$KTUNED_HOME", "/chosen") for row in rows[:3]] == list(map(str, chosen))
    assert f"rm -r {' '.join(defaults)} " in uninstall


def test_the_example_of_config_toml_is_valid_and_complete() -> None:
    """Each setting has a row in a table."""
    (block,) = re.findall(
        r"^```toml\n(.*?)^```$", (ROOT / "docs/reference/settings.md").read_text(), re.DOTALL | re.MULTILINE
    )
    example = msgspec.toml.decode(block)
    assert msgspec.toml.decode(block, type=settings.ConfigFile).roots
    names, root_names = settings.ConfigFile.__struct_fields__, settings.RootSettings.__struct_fields__
    assert (set(example), set(example["roots"][0])) == (set(names), set(root_names))
    assert sorted(read_names("docs/reference/settings.md", "## `config.toml`")) == sorted(names)
    assert read_names("docs/reference/settings.md", "## `[[roots]]`") == list(root_names)
    assert read_names("docs/reference/settings.md", "## `[share]`") == list(ShareSettings.__struct_fields__)


def test_the_example_of_ktuned_toml_is_valid_and_complete() -> None:
    """Each setting has a row in a table."""
    (block,) = re.findall(
        r"^```toml\n(.*?)^```$", (ROOT / "docs/reference/kernel-files.md").read_text(), re.DOTALL | re.MULTILINE
    )
    project = project_file.parse_project(block.encode(), "ktuned.toml")
    names = [field.name for field in fields(project) if field.name != "digest"]
    assert all(getattr(project, name) for name in names)
    assert all(structs.astuple(project.defaults))
    assert read_names("docs/reference/kernel-files.md", "## Projects") == names


def test_documented_defaults_are_those_of_the_code() -> None:
    rows = read_table("docs/reference/settings.md", "## `config.toml`")
    documented = {row[0].strip("`"): row[1] for row in rows}
    assert documented["policy"] == f'`"{settings.ConfigFile().policy}"`'
    assert documented["artifacts_gib"] == f"{settings.ConfigFile().artifacts_gib:g}"
    for name in ("spares", "contention"):
        assert documented[name] == str(getattr(settings.ConfigFile(), name)).lower()
    assert documented["arch"] == f'`"{DEFAULT_TARGET}"`'
    assert documented["idle_exit_s"] == f"{AUTO_IDLE_EXIT_S:g}, or 0"
    team = {row[0].strip("`"): row[1:] for row in read_table("docs/reference/settings.md", "## `[share]`")}
    assert {name: default for name, (default, _) in team.items()} == {
        name: f"{value:g}" if type(value) is float else str(value).lower() or "none"
        for name, value in msgspec.structs.asdict(ShareSettings()).items()
    }
    assert team["pull_s"][1].endswith(f"at least {MIN_PULL_S:g}")
    assert read_names("docs/reference/cluster.md", "## `[cluster]`") == list(ClusterSettings.__struct_fields__)


def test_each_priority_is_explained() -> None:
    """By the name and the number that ``--priority`` takes."""
    rows = read_table(REFERENCE, "## Priorities")
    levels = {row[1].strip("`"): int(row[0]) for row in rows}
    assert levels == {level.name.lower().replace("_", "-"): level.value for level in Priority}
    assert list(levels.values()) == sorted(levels.values(), reverse=True)


def test_limits_of_jobs_and_results_are_documented() -> None:
    reference = (ROOT / REFERENCE).read_text()
    assert f"`0.03`; default {100 * watch.DEFAULT_TOLERANCE:g} %" in reference
    assert f"the newest {jobs.LISTED}" in reference
    assert f"default {results.DEFAULT_LIMIT} in a table" in reference


def list_texts(source: str) -> list[str]:
    """Return the texts of a module, with ``…`` for what a formatted text fills in."""
    tree = ast.parse(source)
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    return [
        "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        if isinstance(node, ast.JoinedStr)
        else str(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and id(node) not in parts)
    ]


def test_each_explained_message_exists_in_the_code() -> None:
    """The page of messages has at least forty, and ``…`` stands for whatever a message fills in."""
    page = (ROOT / "docs/reference/messages.md").read_text()
    messages = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert len(messages) >= 40
    missing = set(messages)
    for path in (path for name in ("ktuned", "client", "plugins") for path in (ROOT / name).rglob("*.py")):
        source = path.read_text()
        # Parsing all modules takes seconds. A long text may go on in another line, so only its beginning is searched.
        if any(max(message.split("…"), key=len).strip()[:18] in source for message in missing):
            texts = list_texts(source)
            missing -= {message for message in missing if any(fits(message, text) for text in texts)}
    assert missing == set()


def fits(message: str, text: str) -> bool:
    """Return whether a text of the code has all parts of a message in their order, and nothing between but values."""
    pattern = "[^a-z]*".join(re.escape(part.strip()) for part in message.strip("… :;").split("…"))
    return re.search(pattern, text) is not None


def test_each_exit_code_is_explained() -> None:
    rows = read_table(REFERENCE, "## Exit codes")
    assert [(row[1].strip("`"), int(row[0])) for row in rows] == [(code.name, code.value) for code in Exit]


def list_commands() -> dict[str, click.Command]:
    """Return every command by its words; a group is replaced by its commands."""
    context = click.Context(cli)
    found = {name: command for name in COMMANDS if (command := cli.get_command(context, name))}
    groups = [name for name, command in found.items() if isinstance(command, click.Group)]
    for name in groups:
        group = found.pop(name)
        assert isinstance(group, click.Group)
        found |= {f"{name} {child}": command for child, command in group.commands.items()}
    return found


def test_the_reference_has_each_command_once() -> None:
    """The arguments are listed, and the changelog has the number of commands."""
    sections = re.findall(r"^### `ktuned ([a-z ]+?)( [^a-z`].*)?`$", (ROOT / REFERENCE).read_text(), re.MULTILINE)
    documented = dict(sections)
    commands = list_commands()
    assert (len(sections), documented.keys()) == (len(commands), commands.keys())
    assert f"- {len(COMMANDS)} commands in four groups" in (ROOT / "CHANGELOG.md").read_text()
    for name, command in commands.items():
        arguments = [param for param in command.params if isinstance(param, click.Argument)]
        assert bool(arguments) == bool(documented[name]), name


def read_options(cell: str) -> list[str]:
    return re.findall(r"`(--?[a-z-]+)", cell)


@pytest.mark.parametrize("name", list_commands())
def test_the_reference_explains_options_that_exist(name: str) -> None:
    """``--help`` lists all; the reference has those that need more words."""
    reference = (ROOT / REFERENCE).read_text()
    heading = re.search(rf"^### `ktuned {name}(?: [^a-z`][^`]*)?`$", reference, re.MULTILINE)
    assert heading
    section = re.split(r"^##", reference[heading.end() :], maxsplit=1, flags=re.MULTILINE)[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `-")]
    documented = {option for row in rows for option in read_options(row)}
    common = {option for row in read_table(REFERENCE, "## Common options") for option in read_options(row[0])}
    params = [param for param in list_commands()[name].params if isinstance(param, click.Option) and not param.hidden]
    assert documented <= {option for param in params for option in param.opts} - common


@pytest.mark.parametrize("name", list_commands())
def test_help_names_no_value_by_its_type(name: str) -> None:
    command = list_commands()[name]
    context = click.Context(command)
    options = [param for param in command.params if isinstance(param, click.Option)]
    shown = [row[0] for option in options if (row := option.get_help_record(context)) is not None]
    assert [row for row in shown if re.search(r"\b(TEXT|INTEGER|FLOAT|RANGE|BOOLEAN|FILENAME|UUID)\b", row)] == []


@pytest.mark.anyio
async def test_the_protocol_s_table_has_each_method_with_its_params(daemon: Daemon) -> None:
    """A `?` marks params with a default."""
    told = {
        name: read_code_words(row[1])
        for row in read_table("docs/reference/protocol.md", "## Methods")
        for name in read_code_words(row[0])
    }
    assert told.keys() == daemon.handlers.keys()
    for name, params in told.items():
        known = fields(daemon.handlers[name].method.params)
        # The sentence above the table has it, for every method that takes a kernel.
        params += ["directory?"] * ("kernel" in {field.name for field in known})
        assert sorted(param.rstrip("?") for param in params) == sorted(field.name for field in known), name
        # One of several alternatives bears no mark, and is needed only as one of them.
        marked = {param.rstrip("?") for param in params if param.endswith("?")}
        assert not marked & {field.name for field in known if field.required}, name


@pytest.mark.anyio
async def test_the_protocol_s_table_has_each_field_of_a_status(daemon: Daemon) -> None:
    told = [name for row in read_table("docs/reference/protocol.md", "## Status") for name in read_code_words(row[0])]
    peer = server.Connection(server.Server([]))
    answer = cast(Any, daemon.handlers["status"].handle)(NoParams(), peer)
    assert sorted(told) == sorted(msgspec.to_builtins(answer))


JOB = Job(1, KernelName("p:k"), {}, DeviceModel("x"), JobState.QUEUED, 100, "asked", Plan(), created=0.0)
TRIAL = make_trial(outcome=None, latency_us=None)


@pytest.mark.parametrize(("name", "value"), [("job", JobInfo.from_job(JOB)), ("trial", TRIAL)])
def test_documented_fields_of_jobs_and_trials_are_those_of_the_protocol(name: str, value: msgspec.Struct) -> None:
    (fields,) = (row[1] for row in read_table("docs/reference/protocol.md", "## Values") if row[0] == name)
    assert sorted(read_code_words(fields)) == sorted(msgspec.to_builtins(value))


def test_each_type_of_event_is_documented_with_its_fields() -> None:
    told = {
        name: row[1]
        for row in read_table("docs/reference/protocol.md", "## Events")
        for name in read_code_words(row[0])
    }
    assert told.keys() == EVENT_TYPES.keys()
    for name, kind in EVENT_TYPES.items():
        (adds, *_) = re.findall(r"`([^`]*)`", told[name]) or [""]
        assert {word.removesuffix("?") for word in adds.split()} <= {*kind.__struct_fields__}


def test_documented_limits_of_the_protocol_are_those_of_the_code() -> None:
    from ktuned.catalog import catalog

    limits = [
        wire.MAX_REQUEST_BYTES,
        wire.MAX_MESSAGE_BYTES,
        wire.MAX_REQUEST_ITEMS,
        wire.MAX_ITEMS,
        wire.MAX_NESTING,
        server.MAX_PENDING,
        catalog.MAX_PROBLEM_SIZE,
        server.MAX_CONNECTIONS,
        server.WRITE_BUFFER_BYTES,
    ]
    values = "\n".join(row[1] for row in read_table("docs/reference/protocol.md", "## Limits"))
    units = {"": 1, " KiB": 2**10, " MiB": 2**20}
    figures = re.findall(r"([\d,]*\d)( [KM]iB)?", values)
    assert [int(figure.replace(",", "")) * units[unit] for figure, unit in figures] == limits


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(document: Path) -> None:
    broken = []
    for link in re.findall(r"\]\((?!https?:)([^)]+)\)", document.read_text()):
        name, _, anchor = link.partition("#")
        target = document.parent / name if name else document
        if not target.exists() or (anchor and anchor not in list_anchors(target.read_text())):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_table_has_a_heading(document: Path) -> None:
    """An empty line within a table would end it."""
    text = re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)
    tables = re.findall(r"(?:^ *\|.*\n)+", text, re.MULTILINE)
    assert [table for table in tables if not re.match(r".*\n *\|[-| ]+\|\n", table)] == []


def list_anchors(text: str) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


PLACES = sorted(set(re.findall(r"`((?:\w+/)*\w+(?:/|\.py))`", (ROOT / "docs/internals/architecture.md").read_text())))


@pytest.mark.parametrize("place", PLACES)
def test_the_architecture_names_existing_modules(place: str) -> None:
    assert (ROOT / place).exists() or list(ROOT.glob(f"ktuned/**/{place}")) or list(ROOT.glob(f"client/*/{place}"))


def test_the_tour_names_every_module_and_package() -> None:
    tour = (ROOT / "docs/internals/architecture.md").read_text().partition("## A tour of the code")[2]
    parts = [path for path in (ROOT / "ktuned").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    names = {f"{path.name}/" if path.is_dir() else path.name for path in parts if not path.stem.startswith("__")}
    told = set(re.findall(r"`(?:ktuned/)?([\w]+(?:/|\.py))", tour))
    assert names - told == set()


def test_documents_name_existing_commands_and_options() -> None:
    commands = list_commands()
    wrong = []
    for document in DOCUMENTS:
        if document.name == "CHANGELOG.md":
            continue
        text = document.read_text()
        blocks = "".join(re.findall(r"^```(?:console)?\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
        lines = re.findall(r"`ktuned ([a-z][^`\n]*)", text)
        for line in [*lines, *re.findall(r"^(?:\$ )?ktuned ([a-z].*)", blocks, re.MULTILINE)]:
            words = re.split(r"\s+#|\s&&\s", line)[0].split()
            name = " ".join(words[:2]) if " ".join(words[:2]) in commands else words[0]
            if name == "run":
                continue
            known = {option for param in commands[name].params for option in param.opts} if name in commands else set()
            flags = {word.partition("=")[0].rstrip(",.;:)") for word in words[1:] if word.startswith("--")}
            if name not in commands or flags - known - {"--help"}:
                wrong.append((document.name, line))
    assert wrong == []


def test_each_line_of_what_is_seen_names_tests_that_exist() -> None:
    """A test is a function of a file, or a kind of edit of the scripted author."""
    _, _, rest = (ROOT / "docs/reference/fresh.md").read_text().partition("\n## When ktuned sees a change\n")
    rows = re.findall(r"^\| (?!---|(?:never )?seen).*\| (.*) \|$", rest.partition("\n## ")[0], re.MULTILINE)
    kinds = {
        kind
        for line in (ROOT / "tests/author/project.py").read_text().splitlines()
        for kind in re.findall('^            "(.+)": \\(', line)
    }
    assert len(rows) > 10
    for row in rows:
        functions = re.findall(r"`(tests/\S+\.py)::(\w+)`", row)
        edits = re.findall(r"`([^`]+)`", row.partition("author: ")[2])
        assert functions or edits, row
        assert all(f"def {name}(" in (ROOT / file).read_text() for file, name in functions), row
        assert kinds.issuperset(edits), row
