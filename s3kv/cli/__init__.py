"""The `s3kv` command. Works without torch and vLLM; only `demo` starts engines, as processes.

Commands are imported when they run: `import s3kv.cli` is cheap and loads no SDK.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from s3kv.cli.options import AsJson, Options, Work, with_options
from s3kv.cli.output import Output

app = typer.Typer(
    name="s3kv",
    help="Looks at archives of prompt KV cache in S3-compatible object storage.",
    no_args_is_help=True,
    add_completion=False,
    # A traceback with local variables could print credentials.
    pretty_exceptions_enable=False,
)


@app.command("doctor")
@with_options
def doctor_command(options: Options, output: Output) -> Work:
    """Check everything that an engine needs from a bucket, and say what is wrong.

    Exit code: 0 all good, 1 usable with limits, 2 unusable.
    """
    from s3kv.cli.doctor import doctor

    return doctor(options, output)


@app.command("ls")
@with_options
def ls_command(options: Options, output: Output) -> Work:
    """List the namespaces under a prefix: chunks, bytes, tokens, age."""
    from s3kv.cli.listing import listing

    return listing(options, output)


@app.command("stat")
@with_options
def stat_command(
    options: Options,
    output: Output,
    namespace: Annotated[
        str | None,
        typer.Argument(help="Id, or its beginning; may be left out if there is only one."),
    ] = None,
) -> Work:
    """Show one namespace in detail and verify its newest shard, or show the shard that URI names.

    Exit code: 0 all good, 1 what was looked at is damaged, 2 it cannot be looked at.
    """
    from s3kv.cli.stat import stat

    return stat(options, namespace, output)


@app.command("demo")
def demo_command(
    work_dir: Annotated[
        Path, typer.Option("--work-dir", help="Holds the model, the logs and demo.json.")
    ] = Path("build"),
    json: AsJson = False,
) -> None:
    """Show the point on this machine: a real engine, a restart, a damaged shard."""
    import sys

    from rich.console import Console

    from s3kv.cli.demo import run_demo

    exit_code = run_demo(work_dir, Console(stderr=json))
    result = work_dir / "demo.json"
    if json:
        # Without a result the demo has said on stderr why.
        failed = f'{{"exit_code": {exit_code}}}\n'
        sys.stdout.write(result.read_text("utf-8") if result.exists() else failed)
    raise typer.Exit(exit_code)


def main() -> None:
    """Entry point of the `s3kv` script."""
    app()
