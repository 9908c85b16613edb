"""s3kv: prompt KV cache of vLLM engines in S3-compatible object storage.

Importing this package is cheap: no torch, no vLLM, no boto, no network.
"""

__version__ = "0.1.0"
