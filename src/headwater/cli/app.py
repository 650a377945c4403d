"""The command group, and the conversion of errors into one-line messages and exit statuses.

Exit statuses: 0 success, 1 a defect of Headwater, 2 a mistake of the caller, 130 interrupted.
"""

from __future__ import annotations

import codecs
import errno
import io
import os
import re
import sys
from collections.abc import Sequence
from typing import Annotated

import click
import typer

from headwater import __version__, startup
from headwater.cli import (
    audit,
    compare,
    config,
    deploy,
    deploy_control,
    deploy_members,
    new,
    plan,
    predict,
    reproduce,
    run,
    runs,
    sweep,
    theory,
    tune,
    watch,
)
from headwater.cli import list as listing
from headwater.cli.options import command_group
from headwater.cli.terminal import closest_characters, say
from headwater.errors import TaskError, UserError, nearest

ISSUES = "the project's issue tracker"
LONGEST = 400  # letters of a path that a message shows
DISK = {errno.ENOSPC, errno.EDQUOT}
PLACE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR}
PLACE |= {errno.ENAMETOOLONG, errno.ENOENT, errno.EEXIST}

app = command_group(
    "headwater",
    "Federated learning over a tree of server, sectors and clients.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("run")(run.run)
app.command("compare")(compare.compare)
app.command("sweep")(sweep.sweep)
app.command("tune")(tune.tune)
app.command("reproduce")(reproduce.reproduce)
app.command("partition")(plan.partition)
app.command("plan")(plan.plan)
app.add_typer(theory.app, name="theory")
app.command("report")(compare.report)
app.command("watch")(watch.watch)
app.command("predict")(predict.predict)
app.command("export")(predict.export)
app.command("list")(listing.list_)
app.command("audit")(audit.audit)
app.command("config")(config.config)
app.command("new")(new.new)
app.command("runs")(runs.runs)
app.command("resume")(run.resume)
for steer in (deploy_control.pause, deploy_control.resume, deploy_control.stop, deploy_members.add):
    deploy.app.command()(steer)
for enrolment in (deploy_members.enrol, deploy_members.approve, deploy_members.rotate):
    deploy.app.command()(enrolment)
app.add_typer(deploy.app, name="deploy")


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"headwater {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _group(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and stop.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status.

    Args:
        arguments: words after `headwater`; None for those of this process.
    """
    words = sys.argv[1:] if arguments is None else [*arguments]
    if arguments is None:
        startup.defer_gc()
    codecs.register_error("headwater.plain", closest_characters)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="headwater.plain")  # a terminal that lacks a character must not stop a run
    try:
        status = app(words, prog_name="headwater", standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except click.ClickException as error:
        say(_usage(error))
        return 2
    except UserError as error:
        say(str(error))
        return 2
    except TaskError as error:  # the message names the task and the node
        say(str(error))
        return _debug(error)
    except (KeyboardInterrupt, click.Abort):
        say("interrupted; what was finished is kept, and the same command carries on")
        return 130
    except BrokenPipeError:  # the reader of standard output has closed it, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _system(error)
    except Exception as error:
        return _ours(error)
    finally:
        startup.freeze_gc()


def _usage(error: click.ClickException) -> str:
    """A usage error as one sentence. Unknown commands get our own message, as that of click depends on its version."""
    if isinstance(error, click.UsageError) and error.ctx is not None and "No such command" in error.message:
        group = error.ctx.command
        known = [*group.commands] if isinstance(group, click.Group) else []
        word = error.message.split("'")[1] if "'" in error.message else ""
        of = f" in {error.ctx.command_path}" if error.ctx.parent is not None else ""
        return f"there is no command {word!r}{of}{nearest(word, known)} (commands: {', '.join(known)})"
    if isinstance(error, click.NoSuchOption):
        close = " or ".join(error.possibilities or ())
        where = error.ctx.command_path if error.ctx is not None else "headwater"
        hint = f"; did you mean {close}?" if close else ""
        return f"there is no such option: {error.option_name}{hint} ({where} --help lists all)"
    if isinstance(error, click.MissingParameter) and isinstance(error.param, click.Option):
        return f"missing option {error.param.opts[0]} {error.param.metavar or ''}".rstrip()
    text = error.format_message().rstrip(".")
    return f"{text[:1].lower()}{text[1:]}"


def _system(error: OSError) -> int:
    where = f"{_short_path(str(error.filename))}: " if error.filename else ""
    if error.errno in DISK:
        say(
            f"{where}the disk is full; make room, then carry on with headwater resume DIR, or with the same command if "
            "it had --out"
        )
        return 2
    if error.errno in PLACE:
        say(f"{where}{(error.strerror or str(error)).lower()}; choose a place that can be read and written")
        return 2
    return _ours(error)


def _short_path(path: str) -> str:
    path = re.sub(r"/\.([^/]+)\.\d+\.draft(?=/|$)", r"/\1", path)  # a directory gets its name when it is complete
    return path if len(path) <= LONGEST else f"{path[: LONGEST // 2]}… ({len(path):,} letters)"


def _debug(error: Exception) -> int:
    if os.environ.get("HEADWATER_DEBUG"):
        raise error
    return 1


def _ours(error: Exception) -> int:
    _debug(error)
    say(
        f"this should not have happened ({type(error).__name__}: {error}); please report it at {ISSUES}, "
        "with what HEADWATER_DEBUG=1 and the same command show"
    )
    return 1
