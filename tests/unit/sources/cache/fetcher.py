"""Script that fetches a model in small parts, then sleeps: `fetcher.py URI [SECONDS]`."""

from __future__ import annotations

import sys
import time

from rayllm.config import BucketSource
from rayllm.sources import fetch
from rayllm.sources.transfer import download

if __name__ == "__main__":
    download.PART_SIZE = 64 * 1024
    print(fetch(BucketSource(bucket_uri=sys.argv[1]), "m").folder, flush=True)
    time.sleep(float(sys.argv[2]) if len(sys.argv) > 2 else 0)
