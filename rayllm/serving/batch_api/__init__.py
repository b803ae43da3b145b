"""OpenAI's Files API and Batches API: what clients keep here, and batches of requests that are answered in time.

All state lies in one folder (`router.batches.storage`), and each file of it has one writer:

    files/<file>.json                what a file is; written once
    contents/<file>                  what is in it; written once
    expiring/<time>.<file>           the file is to be deleted at that time
    batches/<batch>.json             what a client asked for; written once, by a router
    progress/<batch>.json            how far the batch is; written by its runner alone
    attempts/<batch>.<n>.<m>         its n-th runner works on it since m requests were answered; written by its runner
    cancellations/<batch>            when a client cancelled the batch; written by a router
    unfinished/<batch>.<time>        the batch has not ended, and expires at that time
    jobs/<batch>/                    the work on the batch; gone when it has ended
"""
