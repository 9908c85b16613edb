"""The `s3kv` command. Works without torch and vLLM; only `demo` starts engines, as processes.

Commands are imported when they run: `import s3kv.cli` is cheap and loads no SDK.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from s3kv.cli.forget_options import ForgetOptions
from s3kv.cli.options import AsJson, Options, Work, with_options
from s3kv.cli.output import Output
from s3kv.cli.pin_options import PinOptions
from s3kv.cli.prompt_options import PromptOptions
from s3kv.cli.sweep_options import SweepOptions
from s3kv.cli.verify_options import VerifyOptions

app = typer.Typer(
    name="s3kv",
    help="Looks after archives of prompt KV cache in S3-compatible object storage.",
    no_args_is_help=True,
    add_completion=False,
    # A traceback with local variables could print credentials.
    pretty_exceptions_enable=False,
)


@app.command("doctor")
@with_options
def doctor_command(
    options: Options,
    output: Output,
    namespace: Annotated[
        str | None,
        typer.Argument(help="With --rebuild: id, or its beginning; all namespaces if left out."),
    ] = None,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Make the index again from a listing of the shards.")
    ] = False,
) -> Work:
    """Check everything that an engine needs from a bucket, and say what is wrong.

    Exit code: 0 all good, 1 usable with limits, 2 unusable.
    """
    if rebuild:
        from s3kv.cli.rebuild import rebuild as make_again

        return make_again(options, namespace, output)
    if namespace is not None:
        from s3kv.errors import ConfigError

        raise ConfigError(
            "NAMESPACE",
            namespace,
            "only --rebuild is about a namespace",
            "add it, or leave this out",
        )
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


@app.command("sweep")
@with_options
def sweep_command(options: Options, output: Output, given: SweepOptions) -> Work:
    """Delete what nobody uses any more and what was left behind; a dry run unless --yes.

    Exit code: 0 done, 1 something could not be swept, 2 unusable.
    """
    from s3kv.cli.sweep import sweep

    return sweep(options, given, output)


@app.command("verify")
@with_options
def verify_command(options: Options, output: Output, wishes: VerifyOptions) -> Work:
    """Check shards against their names, headers and checksums; --yes quarantines what is wrong.

    Exit code: 0 all good, 1 something is wrong or could not be checked, 2 nothing can be checked.
    """
    from s3kv.cli.verify import verify

    return verify(options, wishes, output)


@app.command("explain")
@with_options
def explain_command(
    options: Options,
    output: Output,
    prompt: PromptOptions,
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", help="Id, or its beginning; where it is found if left out."),
    ] = None,
) -> Work:
    """Say which chunks of a prompt are archived, and why the first missing one is not.

    The prompt is a text (--model, --prompt-file), messages (with --chat) or --token-ids.
    Images, adapters and options of a chat template are not in it.

    Exit code: 0 all of it is there, 1 something is missing, 2 that cannot be told.
    """
    from s3kv.cli.explain import explain

    return explain(options, prompt, namespace, output)


@app.command("forget")
@with_options
def forget_command(
    options: Options, output: Output, given: ForgetOptions, prompt: PromptOptions
) -> Work:
    """Delete a prompt, chunks or a namespace, all versions, and prove it; a dry run unless --yes.

    All chunks of a prompt go, also those that other prompts begin with (--keep-shared-with).
    Longer prompts, such as a conversation that went on, have more of them: give the longest.
    An engine that computes it again archives it again: s3kv pause --save first.

    Exit code: 0 gone (or a dry run), 1 something is left, 2 it cannot be done.
    """
    from s3kv.cli.forget import forget

    return forget(options, given, prompt, output)


_NamespaceOrAll = Annotated[
    str | None, typer.Argument(help="Id, or its beginning; all namespaces if left out.")
]
_Loads = Annotated[bool, typer.Option("--load", help="Loads; without --save, only them.")]
_Saves = Annotated[bool, typer.Option("--save", help="Saves; without --load, only them.")]


@app.command("pause")
@with_options
def pause_command(
    options: Options,
    output: Output,
    namespace: _NamespaceOrAll = None,
    load: _Loads = False,
    save: _Saves = False,
) -> Work:
    """Ask every engine of the fleet to load and save nothing until it is resumed.

    Exit code: 0 in force, 1 not in all namespaces, 2 nowhere.
    """
    from s3kv.cli.pause import PauseOptions, pause

    return pause(options, namespace, PauseOptions(load, save), output)


@app.command("resume")
@with_options
def resume_command(
    options: Options,
    output: Output,
    namespace: _NamespaceOrAll = None,
    load: _Loads = False,
    save: _Saves = False,
) -> Work:
    """Take a pause back.

    Exit code: 0 done, 1 not in all namespaces, 2 nowhere.
    """
    from s3kv.cli.pause import PauseOptions, resume

    return resume(options, namespace, PauseOptions(load, save), output)


@app.command("pin")
@with_options
def pin_command(
    options: Options,
    output: Output,
    prompt: PromptOptions,
    given: PinOptions,
    name: Annotated[
        str | None, typer.Argument(help="Of the set; all sets are listed if it is left out.")
    ] = None,
) -> Work:
    """Keep chunks whatever their age and the archive's size, or list what is kept.

    Exit code: 0 good, 1 a set cannot be read, 2 bad input, or the store cannot be used.
    """
    from s3kv.cli.pinning import pin

    return pin(options, name, given, prompt, output)


@app.command("unpin")
@with_options
def unpin_command(
    options: Options,
    output: Output,
    name: Annotated[str, typer.Argument(help="Of the set.", show_default=False)],
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", help="Id, or its beginning; needed if there are several."),
    ] = None,
) -> Work:
    """Delete a pinned set; its chunks stay, and age like all others.

    Exit code: 0 deleted, 1 a part of it was written anew meanwhile and stays, 2 there is none.
    """
    from s3kv.cli.pinning import unpin

    return unpin(options, name, namespace, output)


@app.command("sequencer")
@with_options
def sequencer_command(
    options: Options,
    output: Output,
    namespaces: Annotated[
        list[str] | None,
        typer.Argument(help="Ids, or their beginnings; all, also later ones, if left out."),
    ] = None,
    ttl: Annotated[
        str | None,
        typer.Option("--ttl", help="The engines' ttl_s, e.g. 30d: who leads enforces it."),
    ] = None,
    max_bytes: Annotated[
        str | None,
        typer.Option("--max-bytes", help="The engines' max_bytes, e.g. 500GiB, per namespace."),
    ] = None,
) -> Work:
    """Lead the index for a large fleet, until SIGINT or SIGTERM; with --json a document per line.

    Exit code: 0 ended by a signal, 2 it cannot begin.
    """
    from s3kv.cli.sequencer import sequencer

    return sequencer(options, namespaces or (), ttl, max_bytes, output)


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
    import sys

    from s3kv.cli.usage import run

    sys.exit(run(app, sys.argv[1:]))
