"""Run a SeaweedFS by hand: `python tools/local_store.py FOLDER [--port N] [--bucket NAME]`.

Prints what a shell must export to use it, runs until Ctrl-C, stops it cleanly. The data stays in
the folder.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from s3kv.cli.local_store import create_bucket, local_store


def main() -> int:
    """Start, announce, wait, stop."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where data, users and log are kept")
    parser.add_argument("--port", type=int, default=None, help="port of S3 (default: a free one)")
    parser.add_argument("--bucket", default="s3kv", help="created if missing (default: s3kv)")
    arguments = parser.parse_args()
    ending = (signal.SIGINT, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_BLOCK, ending)
    with local_store(arguments.folder.resolve(), port=arguments.port) as store:
        create_bucket(store.endpoint_url, arguments.bucket)
        print(f"# SeaweedFS at {store.endpoint_url}, bucket {arguments.bucket}")
        for name, value in store.environment().items():
            print(f"export {name}={value}")
        print(f"export AWS_ENDPOINT_URL_S3={store.endpoint_url}", flush=True)
        signal.sigwait(ending)
    return 0


if __name__ == "__main__":
    sys.exit(main())
