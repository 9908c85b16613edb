"""vLLM imports the connector in its front end too: that must stay cheap."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.timeout(120)]

SCRIPT = """
import json, sys
import s3kv.connector.plugin
import torch
print(json.dumps({
    "ours": [name for name in sys.modules if name.startswith("s3kv.")],
    "aiobotocore": "aiobotocore" in sys.modules,
    "cuda": torch.cuda.is_initialized(),
}))
"""


def test_loading_the_plugin_touches_no_store_no_device_and_no_side() -> None:
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    found = json.loads(ran.stdout.splitlines()[-1])
    # boto3 itself proves nothing: vLLM imports it.
    heavy = ("s3kv.bucket", "s3kv.device", "s3kv.runtime")
    sides = ("s3kv.connector.worker", "s3kv.connector.scheduler")
    assert [name for name in found["ours"] if name.startswith(heavy) or name in sides] == []
    assert found["aiobotocore"] is False
    assert found["cuda"] is False
