"""OpenAI's Files API and Batches API.

All state is in one folder (`router.batches.storage`), and each file in it has one writer:

    files/<file>.json                description of a file; written once
    contents/<file>                  content of a file; written once
    expiring/<time>.<file>           marks a file that expires at that time
    batches/<batch>.json             a batch as created; written once, by a router
    progress/<batch>.json            its present state; written by its runner only
    attempts/<batch>.<n>.<m>         n runners have started since m requests were answered; written by its runner
    cancellations/<batch>            time of cancellation; written by a router
    unfinished/<batch>.<time>        marks an unfinished batch that expires at that time
    jobs/<batch>/                    working folder of its runner; deleted at the end

Process: router; `execution` in the runner of a batch, a Ray actor.
"""
