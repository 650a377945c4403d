"""`headwater deploy pause`, `resume` and `stop`: the server's operator controls a federation."""

from __future__ import annotations

from headwater.cli.options import Options, takes
from headwater.cli.run import Directory
from headwater.cli.terminal import say


@takes("quiet")
def pause(options: Options, directory: Directory) -> None:
    """Pause a federation after its current round.

    DIR is the folder of the server, which may be running. All parties stay connected and wait for `resume`.
    """
    from headwater.deploy.control import PAUSE, request

    _, up = request(directory, PAUSE)
    if not options.quiet:
        when = "after its current round" if up else "as soon as it is started, since it is not running"
        say(f"the federation pauses {when}; continue it with: headwater deploy resume {directory}")


@takes("quiet")
def resume(options: Options, directory: Directory) -> None:
    """Carry on with a paused federation.

    DIR is the folder of the server. A `stop` that has not taken effect yet is withdrawn, too.
    """
    from headwater.deploy.control import withdraw

    withdraw(directory)
    if not options.quiet:
        say("the federation carries on: the request to pause or to stop is withdrawn")


@takes("quiet")
def stop(options: Options, directory: Directory) -> None:
    """End all processes of a federation after its current round.

    DIR is the folder of the running server. Everybody keeps what they have: started again, they carry on.
    """
    from headwater.deploy.control import STOP, request

    request(directory, STOP)
    if not options.quiet:
        say(
            "the federation stops after its current round: the server writes a checkpoint, and all processes end. "
            "Start the server and the other parties again to carry on"
        )
