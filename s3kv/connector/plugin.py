"""vLLM's plugin entry point: makes `"kv_connector": "S3KVConnector"` work without a module path.

Plugins load in the front end, the engine core and every worker, possibly more than once.
"""

from __future__ import annotations

NAME = "S3KVConnector"
MODULE = "s3kv.connector"


def register() -> None:
    """Register the connector class with vLLM's factory, once per process."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    try:
        KVConnectorFactory.register_connector(NAME, MODULE, NAME)
    except ValueError:
        # Registered before in this process: vLLM refuses a second time, which is fine.
        return
