from typing_extensions import Buffer

from eoslog.bindings.record_batch import BatchHeader

def iter_unreplaced_batches(data: Buffer) -> list[BatchHeader]: ...
