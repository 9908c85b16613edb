"""The `s3kv` command. Works without torch and vLLM; only `demo` starts engines, as processes.

Commands are imported when they run: `import s3kv.cli` is cheap and loads no SDK.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="s3kv",
    help="Looks at archives of prompt KV cache in S3-compatible object storage.",
    no_args_is_help=True,
    add_completion=False,
    # A traceback with local variables could print credentials.
    pretty_exceptions_enable=False,
)

_Uri = Annotated[str, typer.Argument(help="s3://bucket/prefix", show_default=False)]
_Endpoint = Annotated[
    str | None,
    typer.Option("--endpoint-url", help="Base URL of an S3-compatible store; AWS if left out."),
]
_Region = Annotated[
    str | None,
    typer.Option("--region", help="Region; the AWS chain decides if left out."),
]
_Profile = Annotated[
    str | None,
    typer.Option("--profile", help="Profile in the AWS configuration files."),
]
_Style = Annotated[
    str, typer.Option("--addressing-style", help="auto, path or virtual; many stores need path.")
]
_Mode = Annotated[
    str, typer.Option("--checksum-mode", help="when_required or when_supported: SDK checksums.")
]
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]


@app.command("doctor")
def doctor_command(
    uri: _Uri,
    endpoint_url: _Endpoint = None,
    region: _Region = None,
    profile: _Profile = None,
    addressing_style: _Style = "auto",
    checksum_mode: _Mode = "when_required",
    json: _Json = False,
) -> None:
    """Check everything that an engine needs from a bucket, and say what is wrong.

    Exit code: 0 all good, 1 usable with limits, 2 unusable.
    """
    from s3kv.cli.connection import Options, run_command
    from s3kv.cli.doctor import doctor as work
    from s3kv.cli.output import Output

    options = Options(
        uri=uri,
        endpoint_url=endpoint_url,
        region=region,
        profile=profile,
        addressing_style=addressing_style,
        checksum_mode=checksum_mode,
    )
    output = Output("json" if json else "human")
    raise typer.Exit(run_command(uri, output, lambda: work(options, output)))


@app.command("ls")
def ls_command(
    uri: _Uri,
    endpoint_url: _Endpoint = None,
    region: _Region = None,
    profile: _Profile = None,
    addressing_style: _Style = "auto",
    checksum_mode: _Mode = "when_required",
    json: _Json = False,
) -> None:
    """List the namespaces under a prefix: chunks, bytes, tokens, age."""
    from s3kv.cli.connection import Options, run_command
    from s3kv.cli.listing import listing
    from s3kv.cli.output import Output

    options = Options(
        uri=uri,
        endpoint_url=endpoint_url,
        region=region,
        profile=profile,
        addressing_style=addressing_style,
        checksum_mode=checksum_mode,
    )
    output = Output("json" if json else "human")
    raise typer.Exit(run_command(uri, output, lambda: listing(options, output)))


@app.command("stat")
def stat_command(
    uri: _Uri,
    namespace: Annotated[
        str | None,
        typer.Argument(help="Id, or its beginning; may be left out if there is only one."),
    ] = None,
    endpoint_url: _Endpoint = None,
    region: _Region = None,
    profile: _Profile = None,
    addressing_style: _Style = "auto",
    checksum_mode: _Mode = "when_required",
    json: _Json = False,
) -> None:
    """Show one namespace in detail and verify its newest shard, or show the shard that URI names.

    Exit code: 0 all good, 1 what was looked at is damaged, 2 it cannot be looked at.
    """
    from s3kv.cli.connection import Options, run_command
    from s3kv.cli.output import Output
    from s3kv.cli.stat import stat as work

    options = Options(
        uri=uri,
        endpoint_url=endpoint_url,
        region=region,
        profile=profile,
        addressing_style=addressing_style,
        checksum_mode=checksum_mode,
    )
    output = Output("json" if json else "human")
    raise typer.Exit(run_command(uri, output, lambda: work(options, namespace, output)))


@app.command("demo")
def demo_command(
    work_dir: Annotated[
        Path, typer.Option("--work-dir", help="Holds the model, the logs and demo.json.")
    ] = Path("build"),
    json: _Json = False,
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
