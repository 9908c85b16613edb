"""A worker obeys a pause that it finds in the index: chunks that wait are not uploaded."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from s3kv.bucket.faults import Faulty
from s3kv.bucket.memory import MemoryStore
from s3kv.core.follower import SAVES_BIT
from s3kv.core.ids import ZERO_HASH
from s3kv.core.pausing import PauseChange, change_pause
from s3kv.runtime.index_client import IndexSettings
from s3kv.runtime.index_tool import IndexTool
from s3kv.runtime.ports import LentSlot
from s3kv.runtime.uploader import SaveFate
from tests.fakes.chunks import GEOMETRY, FakeSlot, identity_of
from tests.fakes.clock import FakeClock
from tests.fakes.namespaces import make_namespace
from tests.unit.connector_values import ChunkAddress, WorkerArchive
from tests.unit.test_connector_shutdown import NoSlots

NAMESPACE = make_namespace()


async def test_saves_that_are_paused_in_the_index_are_given_up_before_their_upload() -> None:
    clock = FakeClock()
    store = Faulty(MemoryStore(unix_s=clock.unix_s))
    hashes = identity_of(0).block_hashes
    slot: LentSlot = FakeSlot(memoryview(bytearray(GEOMETRY.slot_bytes)))
    returned: list[LentSlot] = []
    fates: list[SaveFate] = []
    with ThreadPoolExecutor(1) as hashing:
        archive = WorkerArchive(
            store, NAMESPACE, GEOMETRY, NoSlots(), hashing, clock, IndexSettings(), 4
        )
        archive.start()
        await clock.advance(1.0)
        tool = IndexTool(store, NAMESPACE.id, clock)
        await tool.open()
        change = PauseChange(set_bits=SAVES_BIT)
        await tool.perform(change_pause(tool.sequencer, tool.now(), change))
        await clock.advance(1.1)

        archive.save(
            ChunkAddress(hashes[-1], ZERO_HASH, hashes),
            slot,
            returned.append,
            lambda fate, _: fates.append(fate),
            rewrite=True,
        )
        await clock.settle()

        assert (fates, returned) == ([SaveFate.PAUSED], [slot])
        assert "put" not in [operation for operation, _ in store.calls]
        await archive.drain(0.1)
